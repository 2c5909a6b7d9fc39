/** A time relative to now, updated every 20 s; the exact time as a tooltip. */
import { signal } from "@preact/signals";
import { ago } from "../state/format.ts";

const now = signal(Date.now());
const stepMs = 20_000;

/** Once, at the start. */
export function updateTimes(): void {
  setInterval(() => {
    now.value = Date.now();
  }, stepMs);
}

interface TimeProps {
  at: string | null;
  none?: string;
  /** In a narrow column. */
  isShort?: boolean;
}

export function Time({ at, none = "never", isShort = false }: TimeProps) {
  if (at === null) return <span class="muted">{none}</span>;
  const moment = new Date(at);
  return (
    <time dateTime={at} title={moment.toLocaleString()}>
      {ago(moment.getTime(), Math.max(now.value, moment.getTime()), isShort)}
    </time>
  );
}

/** As Time, for the future. */
export function Until({ at, none }: { at: string | null; none: string }) {
  if (at === null) return <span class="muted">{none}</span>;
  const moment = new Date(at);
  return (
    <time dateTime={at} title={moment.toLocaleString()}>
      {ago(moment.getTime(), now.value)}
    </time>
  );
}

/** The time of day, with the date where that is not today's, and below it how long ago that is. */
export function ExactTime({ at }: { at: string }) {
  const moment = new Date(at);
  const isToday = moment.toDateString() === new Date(now.value).toDateString();
  const clock = moment.toLocaleTimeString("en-GB");
  return (
    <>
      <time dateTime={at} title={moment.toLocaleString()}>
        {isToday ? clock : `${moment.toLocaleDateString("en-CA")} ${clock}`}
      </time>
      <span class="sub">{ago(moment.getTime(), Math.max(now.value, moment.getTime()), true)}</span>
    </>
  );
}
