/** Something read from the service when a page needs it: undefined while it is on its way, then the value or a problem. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { said } from "../state/toasts.ts";

export interface Reading<T> {
  value: T | undefined;
  problem: string | undefined;
  /** Reads it again; what is shown stays until the answer is there. */
  again: () => void;
}

/** `read` is asked again whenever one of `inputs` changes; an answer that comes after that to a later question is dropped. */
export function useReading<T>(read: () => Promise<T>, inputs: readonly unknown[]): Reading<T> {
  const [state, setState] = useState<{ value?: T; problem?: string; inputs: readonly unknown[] }>({ inputs });
  const [round, setRound] = useState(0);
  const asked = useRef(0);
  const answered = useRef(0);
  useEffect(() => {
    const question = ++asked.current;
    const show = (outcome: { value: T } | { problem: string }) => {
      if (question < answered.current) return;
      answered.current = question;
      setState({ ...outcome, inputs });
    };
    read().then(
      (value) => show({ value }),
      (error) => show({ problem: said(error) }),
    );
  }, [...inputs, round]);
  const again = useCallback(() => setRound((before) => before + 1), []);
  const isStale = inputs.some((input, index) => input !== state.inputs[index]);
  return { value: isStale ? undefined : state.value, problem: isStale ? undefined : state.problem, again };
}
