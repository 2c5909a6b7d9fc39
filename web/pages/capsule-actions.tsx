/**
 * Pause, resume, stop, start, snapshot and destroy. Each button describes its effect. Pause, resume and start lose nothing and ask
 * nothing. An action that the capsule's status does not allow is left out; the first one gives the reason, from the server's own table.
 */
import { useState } from "preact/hooks";
import type { CapsuleInfo, CapsuleStatus } from "../../src/sdk/sdk.ts";
import { type Action, refusal, requiredStatuses } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import type { IconName } from "../parts/icon.tsx";
import { Menu, MenuItem } from "../parts/menu.tsx";
import { TextField } from "../parts/text-field.tsx";
import type { Operation } from "../state/capsule-store.ts";
import { useDashboard } from "../state/dashboard.ts";
import { goTo, route } from "../state/route.ts";
import { messageOf } from "../state/toasts.ts";

type Shown = "pause" | "resume" | "stop" | "start" | "snapshot" | "destroy";
type Confirmation = Exclude<Shown, "pause" | "resume" | "start">;

interface ActionButton {
  icon: IconName;
  text: string;
  operation: Operation;
  hint: string;
}

const buttons: Record<Shown, ActionButton> = {
  pause: {
    ...({ icon: "pause", text: "Pause", operation: "pausing" } as const),
    hint: "Saves memory and disk and stops the virtual machine; Resume restores both",
  },
  resume: {
    ...({ icon: "play", text: "Resume", operation: "resuming" } as const),
    hint: "Starts the virtual machine from its saved state; processes continue",
  },
  stop: {
    ...({ icon: "stop", text: "Stop", operation: "stopping" } as const),
    hint: "Ends its programs and the virtual machine; the disk is kept, memory is not",
  },
  start: {
    ...({ icon: "play", text: "Start", operation: "starting" } as const),
    hint: "Boots the virtual machine from the capsule's disk",
  },
  snapshot: {
    ...({ icon: "camera", text: "Snapshot", operation: "capturing" } as const),
    hint: "Turns the capsule into a template, with disk and memory; the capsule is destroyed",
  },
  destroy: {
    ...({ icon: "bin", text: "Destroy", operation: "destroying" } as const),
    hint: "Stops the capsule and deletes its disk and memory",
  },
};

export function CapsuleActions({ capsule, isBrief = false }: { capsule: CapsuleInfo; isBrief?: boolean }) {
  const dashboard = useDashboard();
  const [confirming, setConfirming] = useState<Confirmation>();
  const { id, status } = capsule;
  const operation = dashboard.store.operations.value.get(id);
  const refused = (action: Action) => {
    if (operation !== undefined) return `The capsule is ${operation}`;
    const why = refusal(action, id, status);
    return why && messageOf(new Error(why));
  };
  const press = (action: Shown) => {
    if (action === "pause" || action === "resume" || action === "start")
      void dashboard.attempt(() => dashboard.perform(action, capsule));
    else setConfirming(action);
  };
  const isAllowed = (action: Shown) => refusal(action, id, status) === undefined;
  const button = (action: Shown) => {
    const { icon, text, operation: own, hint } = buttons[action];
    return (
      <Button
        key={action}
        icon={icon}
        kind={isBrief ? "quiet" : "plain"}
        hint={hint}
        refused={refused(action)}
        isBusy={operation === own}
        onPress={() => press(action)}
        {...(isBrief ? { label: `${text} ${id}` } : { children: text })}
      />
    );
  };
  const main = mainAction(status, operation);
  const further = (["stop", "destroy"] as const).filter(isAllowed);
  const close = () => setConfirming(undefined);
  return (
    <>
      {button(main)}
      {isBrief && button("destroy")}
      {!isBrief && isAllowed("snapshot") && button("snapshot")}
      {!isBrief && <MoreActions actions={further} refused={refused} onPress={press} />}
      {confirming === "stop" && <StopDialog capsule={capsule} onClose={close} />}
      {confirming === "snapshot" && <SnapshotDialog capsule={capsule} onClose={close} />}
      {confirming === "destroy" && <DestroyDialog capsule={capsule} onClose={close} />}
    </>
  );
}

interface MoreActionsProps {
  actions: readonly ("stop" | "destroy")[];
  refused: (action: Action) => string | undefined;
  onPress: (action: Shown) => void;
}

function MoreActions({ actions, refused, onPress }: MoreActionsProps) {
  const item = (action: "stop" | "destroy", close: () => void) => {
    const { icon, text, hint } = buttons[action];
    const press = () => {
      close();
      onPress(action);
    };
    const isDanger = action === "destroy";
    return <MenuItem key={action} {...{ icon, text, hint, isDanger }} refused={refused(action)} onPress={press} />;
  };
  return <Menu label="More actions">{(close) => actions.map((action) => item(action, close))}</Menu>;
}

/** One button for pause and what takes it back. */
function mainAction(status: CapsuleStatus, operation: Operation | undefined): "pause" | "resume" | "start" {
  if (requiredStatuses("start")!.includes(status)) return "start";
  return status === "paused" || operation === "resuming" ? "resume" : "pause";
}

interface ConfirmationProps {
  capsule: CapsuleInfo;
  onClose: () => void;
}

function StopDialog({ capsule, onClose }: ConfirmationProps) {
  const dashboard = useDashboard();
  return (
    <FormDialog
      title="Stop this capsule?"
      confirm="Stop"
      onConfirm={() => dashboard.perform("stop", capsule)}
      onClose={onClose}
    >
      <Subject capsule={capsule} />
      <ul>
        <li>Its programs are asked to end, and killed after ten seconds. Memory and terminals are lost.</li>
        <li>Its disk is kept. Start boots from it.</li>
      </ul>
    </FormDialog>
  );
}

function DestroyDialog({ capsule, onClose }: ConfirmationProps) {
  const dashboard = useDashboard();
  const destroy = async () => {
    await dashboard.perform("destroy", capsule);
    leave(capsule);
  };
  return (
    <FormDialog title="Destroy this capsule?" confirm="Destroy" kind="danger" onConfirm={destroy} onClose={onClose}>
      <Subject capsule={capsule} />
      <ul>
        <li>Its processes are killed.</li>
        <li>Its files and its memory are deleted. This cannot be undone.</li>
        <li>Templates are not affected.</li>
      </ul>
    </FormDialog>
  );
}

function SnapshotDialog({ capsule, onClose }: ConfirmationProps) {
  const dashboard = useDashboard();
  const [name, setName] = useState("");
  const [overwrite, setOverwrite] = useState(false);
  const capture = async () => {
    await dashboard.capture(capsule, name.trim(), overwrite);
    leave(capsule);
  };
  const isTaken = dashboard.templates.value?.some((each) => each.type === "snapshot" && each.name === name.trim());
  return (
    <FormDialog
      title="Turn this capsule into a template?"
      confirm="Create template"
      onConfirm={capture}
      onClose={onClose}
    >
      <Subject capsule={capsule} />
      <ul>
        <li>The template contains its disk, memory and running processes. New capsules start from this state.</li>
        <li>The capsule itself is destroyed.</li>
      </ul>
      <TextField
        label="Template name"
        hint="Letters, digits, dots, dashes and underscores. If empty, a name is generated."
        maxLength={64}
        pattern="[a-zA-Z0-9][a-zA-Z0-9._\-]*"
        text={name}
        onChange={setName}
      />
      {isTaken && (
        <label class="choice">
          <input type="checkbox" checked={overwrite} onChange={(event) => setOverwrite(event.currentTarget.checked)} />
          Replace the template that has this name
        </label>
      )}
    </FormDialog>
  );
}

function Subject({ capsule: { id, name, template } }: { capsule: CapsuleInfo }) {
  return (
    <p>
      {name !== null && (
        <>
          <strong class="mono">{name}</strong>,{" "}
        </>
      )}
      <span class="mono">{id}</span>, made from {template}
    </p>
  );
}

/** Leaves the page of a capsule that no longer exists. */
function leave({ id }: CapsuleInfo): void {
  const here = route.value;
  if (here.page === "capsule" && here.id === id) goTo({ page: "capsules" });
}
