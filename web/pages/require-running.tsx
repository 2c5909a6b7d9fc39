/** Renders its content while the capsule runs; else the reason, and a button to resume or start. */
import type { JSX } from "preact";
import type { CapsuleInfo, CapsuleStatus } from "../../src/sdk/sdk.ts";
import { refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import type { IconName } from "../parts/icon.tsx";
import { Empty } from "../parts/page.tsx";
import { statusStyles } from "../parts/status-badge.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { messageOf } from "../state/toasts.ts";

interface RequireRunningProps {
  capsule: CapsuleInfo;
  action: "files" | "processes" | "portList" | "pty";
  render: () => JSX.Element;
}

const starting = { icon: "refresh", title: "This capsule is starting" } as const;

const titles: Partial<Record<CapsuleStatus, { icon: IconName; title: string }>> = {
  pending: starting,
  starting,
  paused: { icon: "pause", title: "This capsule is paused" },
  stopped: { icon: "stop", title: "This capsule is stopped" },
  error: { icon: "warning", title: "This capsule failed" },
};

export function RequireRunning({ capsule, action, render }: RequireRunningProps) {
  const dashboard = useDashboard();
  const { id, status } = capsule;
  const refused = refusal(action, id, status);
  if (refused === undefined) return render();
  const { icon, title } = titles[status] ?? { icon: "box", title: messageOf(new Error(refused)) };
  return (
    <Empty icon={icon} title={title}>
      <p>{statusStyles[status].meaning}</p>
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
