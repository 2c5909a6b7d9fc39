/** A value read from the service: undefined while it loads, then the value or a problem. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "../state/toasts.ts";

export interface Query<T> {
  value: T | undefined;
  problem: string | undefined;
  /** Reads again; the old value stays until the answer arrives. */
  reload: () => void;
}

/** Reads again whenever one of `inputs` changes. An answer that arrives after that of a later request is dropped. */
export function useQuery<T>(read: () => Promise<T>, inputs: readonly unknown[]): Query<T> {
  const [state, setState] = useState<{ value?: T; problem?: string; inputs: readonly unknown[] }>({ inputs });
  const [round, setRound] = useState(0);
  const sent = useRef(0);
  const answered = useRef(0);
  useEffect(() => {
    const request = ++sent.current;
    const show = (outcome: { value: T } | { problem: string }) => {
      if (request < answered.current) return;
      answered.current = request;
      setState({ ...outcome, inputs });
    };
    read().then(
      (value) => show({ value }),
      (error) => show({ problem: messageOf(error) }),
    );
  }, [...inputs, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  const isStale = inputs.some((input, index) => input !== state.inputs[index]);
  return { value: isStale ? undefined : state.value, problem: isStale ? undefined : state.problem, reload };
}
