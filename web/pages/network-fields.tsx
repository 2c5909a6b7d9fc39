/** The fields of a network that a capsule's create and its later change share. */
import type { Egress } from "../../src/sdk/sdk.ts";
import { Field } from "../parts/field.tsx";
import { TextField } from "../parts/text-field.tsx";

/** As the service names the fields in a refusal. */
export const networkPaths = [
  "network.egress",
  "network.allow",
  "network.deny",
  "network.public_ports",
  "network.host_header",
] as const;

export const egressWords: Record<Egress, string> = {
  none: "Nothing",
  allowlist: "What is allowed",
  public: "Every public address",
};

interface EgressFieldProps {
  /** Empty: the service's default. */
  chosen: Egress | "";
  hasDefault?: boolean;
  onChange: (egress: Egress | "") => void;
}

export function EgressField({ chosen, hasDefault = false, onChange }: EgressFieldProps) {
  return (
    <Field
      label="Reaches on the internet"
      path="network.egress"
      hint="Private addresses stay shut, unless the operator grants them. A change holds at once."
    >
      {(ties) => (
        <select {...ties} value={chosen} onChange={(event) => onChange(event.currentTarget.value as Egress | "")}>
          {hasDefault && <option value="">The service's default</option>}
          {Object.entries(egressWords).map(([egress, words]) => (
            <option key={egress} value={egress}>
              {words}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

interface PublicPortsFieldProps {
  text: string;
  onChange: (text: string) => void;
}

export function PublicPortsField(props: PublicPortsFieldProps) {
  return (
    <TextField
      label="Public ports"
      path="network.public_ports"
      hint="Such as 3000, 8080. Anybody who has their URL may reach them; their requests may wake the capsule."
      {...props}
    />
  );
}
