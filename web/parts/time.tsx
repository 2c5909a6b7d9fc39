/** A moment, said relative to now and kept true; the exact time on hovering. */
import { signal } from "@preact/signals";
import { ago } from "../state/words.ts";

const now = signal(Date.now());
const stepMs = 20_000;

/** Once, at the start. */
export function keepTime(): void {
  setInterval(() => {
    now.value = Date.now();
  }, stepMs);
}

export function Time({ at, none = "never" }: { at: string | null; none?: string }) {
  if (at === null) return <span class="muted">{none}</span>;
  const moment = new Date(at);
  return (
    <time dateTime={at} title={moment.toLocaleString()}>
      {ago(moment.getTime(), Math.max(now.value, moment.getTime()))}
    </time>
  );
}

/** As Time, for moments still to come. */
export function Until({ at, none }: { at: string | null; none: string }) {
  if (at === null) return <span class="muted">{none}</span>;
  const moment = new Date(at);
  return (
    <time dateTime={at} title={moment.toLocaleString()}>
      {ago(moment.getTime(), now.value)}
    </time>
  );
}
