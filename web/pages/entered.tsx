/** The inside of a capsule, or why nobody can be inside now and the way on. */
import type { JSX } from "preact";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { Empty } from "../parts/page.tsx";
import { looks } from "../parts/status-badge.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { said } from "../state/toasts.ts";

interface EnteredProps {
  capsule: CapsuleInfo;
  action: "files" | "processes" | "pty";
  render: () => JSX.Element;
}

export function Entered({ capsule, action, render }: EnteredProps) {
  const dashboard = useDashboard();
  const { id, status } = capsule;
  const refused = refusal(action, id, status);
  if (refused === undefined) return render();
  const isStarting = status === "pending" || status === "starting";
  return (
    <Empty icon={isStarting ? "refresh" : "pause"} title={said(new Error(refused))}>
      <p>{isStarting ? "It will be ready in a moment." : looks[status].meaning}</p>
      {status === "paused" && (
        <Button
          kind="primary"
          icon="play"
          isBusy={dashboard.fleet.doing.value.get(id) === "resuming"}
          onPress={() => void dashboard.attempt(() => dashboard.resume(capsule))}
        >
          Resume it
        </Button>
      )}
    </Empty>
  );
}
