/** A field for labels or variables, a line for each. */
import { Field } from "./field.tsx";

interface PairsFieldProps {
  label: string;
  hint: string;
  text: string;
  onChange: (text: string) => void;
}

export function PairsField({ label, hint, text, onChange }: PairsFieldProps) {
  return (
    <Field label={label} hint={hint}>
      {(ties) => (
        <textarea
          {...ties}
          rows={2}
          autocomplete="off"
          spellcheck={false}
          value={text}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}
