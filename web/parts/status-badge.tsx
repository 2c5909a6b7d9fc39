/** A capsule's status: a word, with a shape and a colour of its own. */
import type { CapsuleStatus } from "../../src/wire/capsule.ts";
import type { Doing } from "../state/fleet.ts";

interface Look {
  tone: "good" | "calm" | "busy" | "bad" | "off";
  meaning: string;
}

/** A new status does not compile until it is drawn here. */
export const looks: Record<CapsuleStatus, Look> = {
  pending: { tone: "busy", meaning: "It waits for its turn to start." },
  starting: { tone: "busy", meaning: "Its virtual machine is starting." },
  running: { tone: "good", meaning: "It takes commands." },
  paused: { tone: "calm", meaning: "It is on disk with everything in its memory, and uses neither CPU nor memory." },
  stopped: { tone: "off", meaning: "It powered itself off. Its disk is kept; it can only be destroyed." },
  error: { tone: "bad", meaning: "Its virtual machine failed. It can only be destroyed." },
};

export function StatusBadge({ status, doing }: { status: CapsuleStatus; doing?: Doing | undefined }) {
  const { tone, meaning } = looks[status];
  return (
    <span class={`badge ${doing === undefined ? tone : "busy"}`} title={doing === undefined ? meaning : undefined}>
      <span class="mark" aria-hidden="true" />
      {doing ?? status}
    </span>
  );
}
