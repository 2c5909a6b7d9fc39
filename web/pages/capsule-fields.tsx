/** The fields that a capsule's create and its later change share. */
import { capsuleNamePattern } from "../../src/wire/defaults.ts";
import { Field } from "../parts/field.tsx";
import { PairsField } from "../parts/pairs-field.tsx";

interface TextProps {
  text: string;
  onChange: (text: string) => void;
}

export function NameField({ text, onChange }: TextProps) {
  return (
    <Field label="Name" hint="Optional: a–z, 0–9 and -, unique in the team. Stands for the id.">
      {(ties) => (
        <input
          {...ties}
          type="text"
          autocomplete="off"
          spellcheck={false}
          pattern={capsuleNamePattern}
          value={text}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function LabelsField(props: TextProps) {
  return <PairsField label="Labels" hint="Optional: KEY=VALUE, a line for each, to find it by." {...props} />;
}
