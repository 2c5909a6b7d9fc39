/** A value read from the service: undefined while it loads, then the value or a problem. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "../state/toasts.ts";

export interface Query<T> {
  value: T | undefined;
  problem: string | undefined;
  /** Reads again; the old value stays until the answer arrives. */
  reload: () => void;
  /** Number of answers so far, problems included. */
  answers: number;
}

interface State<T> {
  value?: T;
  problem?: string;
  inputs: readonly unknown[];
  answers: number;
}

/** Reads again whenever one of `inputs` changes. An answer that arrives after that of a later request is dropped. */
export function useQuery<T>(read: () => Promise<T>, inputs: readonly unknown[]): Query<T> {
  const [state, setState] = useState<State<T>>({ inputs, answers: 0 });
  const [round, setRound] = useState(0);
  const sent = useRef(0);
  const answered = useRef(0);
  useEffect(() => {
    const request = ++sent.current;
    const show = (outcome: { value: T } | { problem: string }) => {
      if (request < answered.current) return;
      answered.current = request;
      setState((before) => ({ ...outcome, inputs, answers: before.answers + 1 }));
    };
    read().then(
      (value) => show({ value }),
      (error) => show({ problem: messageOf(error) }),
    );
  }, [...inputs, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  const isStale = inputs.some((input, index) => input !== state.inputs[index]);
  const { value, problem, answers } = state;
  return { value: isStale ? undefined : value, problem: isStale ? undefined : problem, reload, answers };
}

/** Reads again some time after each answer, while the page can be seen. */
export function useRereading({ answers, reload }: Query<unknown>, pauseMs: number): void {
  useEffect(() => {
    if (answers === 0) return;
    const again = () => {
      if (document.hidden) document.addEventListener("visibilitychange", reload, { once: true });
      else reload();
    };
    const timer = setTimeout(again, pauseMs);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", reload);
    };
  }, [answers, reload, pauseMs]);
}
