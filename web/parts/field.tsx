/** One labelled input of a form, with a hint below, and there the service's refusal of it. */
import { type ComponentChildren, createContext, type JSX } from "preact";
import { useContext, useId, useLayoutEffect } from "preact/hooks";
import type { RefusedField } from "../state/refused-field.ts";
import { Icon } from "./icon.tsx";

/** The service's last refusal of a field of the form around. */
export const FieldRefusal = createContext<RefusedField | undefined>(undefined);

interface Ties {
  id: string;
  "aria-describedby": string | undefined;
  "aria-invalid": true | undefined;
}

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  /** As the service names it in a refusal. */
  path?: string;
  /** Renders the input with the attributes that tie it to label and hint. */
  children: (ties: Ties) => JSX.Element;
}

export function Field({ label, hint, path, children }: FieldProps) {
  const id = useId();
  const [hintId, problemId] = [`${id}-hint`, `${id}-problem`];
  const refusal = useContext(FieldRefusal);
  const problem = path !== undefined && refusal?.path === path ? refusal : undefined;
  useLayoutEffect(() => {
    if (problem !== undefined) document.getElementById(id)?.focus(); // which scrolls to it, too
  }, [problem]);
  const described = [...(problem ? [problemId] : []), ...(hint === undefined ? [] : [hintId])];
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({
        id,
        "aria-describedby": described.length === 0 ? undefined : described.join(" "),
        "aria-invalid": problem && true,
      })}
      {problem && (
        <p class="problem" role="alert" id={problemId}>
          <Icon name="warning" /> {problem.text}
        </p>
      )}
      {hint !== undefined && (
        <p class="hint" id={hintId}>
          {hint}
        </p>
      )}
    </div>
  );
}
