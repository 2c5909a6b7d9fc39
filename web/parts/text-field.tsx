/** A labelled field for text that is a name, a path or a list, so without corrections by the browser. */
import { Field } from "./field.tsx";

interface TextFieldProps {
  label: string;
  hint: string;
  /** As the service names it in a refusal. */
  path?: string;
  text: string;
  onChange: (text: string) => void;
  isRequired?: boolean;
  pattern?: string;
  maxLength?: number;
  placeholder?: string;
  /** More than one: a line for each entry. */
  rows?: number;
}

export function TextField(props: TextFieldProps) {
  const { label, hint, path, text, onChange, isRequired = false, rows = 1, pattern, maxLength, placeholder } = props;
  const common = { value: text, required: isRequired, autocomplete: "off", spellcheck: false } as const;
  return (
    <Field label={label} hint={hint} {...(path === undefined ? {} : { path })}>
      {(ties) =>
        rows > 1 ? (
          <textarea {...ties} {...common} rows={rows} onInput={({ currentTarget }) => onChange(currentTarget.value)} />
        ) : (
          <input
            {...ties}
            {...common}
            {...{ pattern, maxLength, placeholder }}
            type="text"
            onInput={({ currentTarget }) => onChange(currentTarget.value)}
          />
        )
      }
    </Field>
  );
}
