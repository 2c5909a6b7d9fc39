/** The fields that a capsule's create and its later change share. */
import { capsuleNamePattern } from "../../src/wire/defaults.ts";
import { TextField } from "../parts/text-field.tsx";

interface TextProps {
  text: string;
  onChange: (text: string) => void;
}

export function NameField(props: TextProps) {
  const hint = "Optional: a–z, 0–9 and -, unique in the team. Stands for the id.";
  return <TextField label="Name" hint={hint} pattern={capsuleNamePattern} {...props} />;
}

export function LabelsField(props: TextProps) {
  return <TextField label="Labels" hint="Optional: KEY=VALUE, a line for each, to find it by." rows={2} {...props} />;
}
