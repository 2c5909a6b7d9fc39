/** A capsule's status as a badge: word, shape and colour. */
import type { CapsuleStatus } from "../../src/wire/capsule.ts";
import type { Operation } from "../state/capsule-store.ts";

interface StatusStyle {
  tone: "good" | "info" | "busy" | "bad" | "off";
  meaning: string;
}

/** A Record, so that a new status does not compile without a style. */
export const statusStyles: Record<CapsuleStatus, StatusStyle> = {
  pending: { tone: "busy", meaning: "It waits to be started." },
  starting: { tone: "busy", meaning: "Its virtual machine is starting." },
  running: { tone: "good", meaning: "It accepts commands." },
  paused: { tone: "info", meaning: "Its memory and disk are saved; it uses no CPU or memory." },
  stopped: { tone: "off", meaning: "Its system was shut down. Its disk is kept; Start boots from it." },
  error: { tone: "bad", meaning: "Its virtual machine failed. If it ever ran, Start boots from its disk." },
};

export function StatusBadge({ status, operation }: { status: CapsuleStatus; operation?: Operation | undefined }) {
  const { tone, meaning } = statusStyles[status];
  return (
    <span
      class={`badge ${operation === undefined ? tone : "busy"}`}
      title={operation === undefined ? meaning : undefined}
    >
      <span class="mark" aria-hidden="true" />
      {operation ?? status}
    </span>
  );
}
