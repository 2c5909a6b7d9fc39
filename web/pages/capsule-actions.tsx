/**
 * Pause, resume, stop, start, snapshot and destroy. Each button describes its effect; where the capsule's status does not allow the
 * action, it gives the reason, from the server's own table.
 */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { type Action, refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import type { IconName } from "../parts/icon.tsx";
import type { Operation } from "../state/capsule-store.ts";
import { useDashboard } from "../state/dashboard.ts";
import { goTo, route } from "../state/route.ts";
import { messageOf } from "../state/toasts.ts";

type Shown = "pause" | "resume" | "stop" | "start" | "snapshot" | "destroy";
type Confirmation = Exclude<Shown, "resume" | "start">;

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
    if (action === "resume" || action === "start") void dashboard.attempt(() => dashboard.perform(action, capsule));
    else setConfirming(action);
  };
  const isStartable = refusal("start", id, status) === undefined;
  const isPaused = status === "paused" || operation === "resuming";
  const revival = isStartable ? "start" : "resume";
  const main: Shown = isStartable || isPaused ? revival : "pause";
  const shown: Shown[] = isBrief ? [main, "destroy"] : [main, "stop", "snapshot", "destroy"];
  const close = () => setConfirming(undefined);
  return (
    <>
      {shown.map((action) => {
        const { icon, text, operation: own, hint } = buttons[action];
        return (
          <Button
            key={action}
            icon={icon}
            kind={isBrief ? "quiet" : action === "destroy" ? "danger" : "plain"}
            hint={hint}
            refused={refused(action)}
            isBusy={operation === own}
            onPress={() => press(action)}
            {...(isBrief ? { label: `${text} ${id}` } : { children: text })}
          />
        );
      })}
      {confirming === "pause" && <PauseDialog capsule={capsule} onClose={close} />}
      {confirming === "stop" && <StopDialog capsule={capsule} onClose={close} />}
      {confirming === "snapshot" && <SnapshotDialog capsule={capsule} onClose={close} />}
      {confirming === "destroy" && <DestroyDialog capsule={capsule} onClose={close} />}
    </>
  );
}

interface ConfirmationProps {
  capsule: CapsuleInfo;
  onClose: () => void;
}

function PauseDialog({ capsule, onClose }: ConfirmationProps) {
  const dashboard = useDashboard();
  return (
    <FormDialog
      title="Pause this capsule?"
      confirm="Pause"
      onConfirm={() => dashboard.perform("pause", capsule)}
      onClose={onClose}
    >
      <Subject capsule={capsule} />
      <ul>
        <li>
          Its memory and disk are saved, and its virtual machine is stopped: it uses no CPU or memory while paused.
        </li>
        <li>Requests that wait for a command fail; background processes and terminals are kept.</li>
        <li>Resume restores everything.</li>
      </ul>
    </FormDialog>
  );
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
      <Field label="Template name" hint="Letters, digits, dots, dashes and underscores. If empty, a name is generated.">
        {(ties) => (
          <input
            {...ties}
            value={name}
            maxLength={64}
            pattern="[a-zA-Z0-9][a-zA-Z0-9._\-]*"
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        )}
      </Field>
      {isTaken && (
        <label class="choice">
          <input type="checkbox" checked={overwrite} onChange={(event) => setOverwrite(event.currentTarget.checked)} />
          Replace the template that has this name
        </label>
      )}
    </FormDialog>
  );
}

function Subject({ capsule: { id, template } }: { capsule: CapsuleInfo }) {
  return (
    <p>
      <span class="mono">{id}</span>, made from {template}
    </p>
  );
}

/** Leaves the page of a capsule that no longer exists. */
function leave({ id }: CapsuleInfo): void {
  const here = route.value;
  if (here.page === "capsule" && here.id === id) goTo({ page: "capsules" });
}
