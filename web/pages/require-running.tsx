/** Renders its content while the capsule runs; else the reason, and a button to resume or start. */
import type { JSX } from "preact";
import type { CapsuleInfo, CapsuleStatus } from "../../src/sdk/sdk.ts";
import { refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { Empty } from "../parts/page.tsx";
import { statusStyles } from "../parts/status-badge.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { messageOf } from "../state/toasts.ts";

interface RequireRunningProps {
  capsule: CapsuleInfo;
  action: "files" | "processes" | "portList" | "pty";
  render: () => JSX.Element;
}

export function RequireRunning({ capsule, action, render }: RequireRunningProps) {
  const dashboard = useDashboard();
  const { id, status } = capsule;
  const refused = refusal(action, id, status);
  if (refused === undefined) return render();
  const titles: Partial<Record<CapsuleStatus, string>> = {
    error: "This capsule failed",
    stopped: "This capsule is stopped",
  };
  const isStarting = status === "pending" || status === "starting";
  return (
    <Empty
      icon={isStarting ? "refresh" : status === "error" ? "warning" : "pause"}
      title={titles[status] ?? messageOf(new Error(refused))}
    >
      <p>{isStarting ? "It will be ready soon." : statusStyles[status].meaning}</p>
      {status === "paused" && (
        <Button
          kind="primary"
          icon="play"
          isBusy={dashboard.store.operations.value.get(id) === "resuming"}
          onPress={() => void dashboard.attempt(() => dashboard.perform("resume", capsule))}
        >
          Resume this capsule
        </Button>
      )}
      {refusal("start", id, status) === undefined && (
        <Button
          kind="primary"
          icon="play"
          isBusy={dashboard.store.operations.value.get(id) === "starting"}
          onPress={() => void dashboard.attempt(() => dashboard.perform("start", capsule))}
        >
          Start this capsule
        </Button>
      )}
    </Empty>
  );
}
