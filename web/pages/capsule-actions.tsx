/**
 * Pause, resume, snapshot and destroy. Each button describes its effect; where the capsule's status does not allow the
 * action, it gives the reason, from the server's own table.
 */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { type Action, refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { goTo, route } from "../state/route.ts";
import { messageOf } from "../state/toasts.ts";

const hints = {
  pause: "Saves memory and disk and stops the virtual machine; Resume restores both",
  resume: "Starts the virtual machine from its saved state; processes continue",
  snapshot: "Turns the capsule into a template, with disk and memory; the capsule is destroyed",
  destroy: "Stops the capsule and deletes its disk and memory",
};

type Confirmation = "pause" | "snapshot" | "destroy";

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
  const close = () => setConfirming(undefined);
  const resume = () => void dashboard.attempt(() => dashboard.resume(capsule));
  const caption = (text: string) => (isBrief ? { label: `${text} ${id}` } : { children: text });
  const isPaused = status === "paused" || operation === "resuming";
  return (
    <>
      {(!isBrief || !isPaused) && (
        <Button
          icon="pause"
          kind={isBrief ? "quiet" : "plain"}
          hint={hints.pause}
          refused={refused("pause")}
          isBusy={operation === "pausing"}
          onPress={() => setConfirming("pause")}
          {...caption("Pause")}
        />
      )}
      {(!isBrief || isPaused) && (
        <Button
          icon="play"
          kind={isBrief ? "quiet" : "plain"}
          hint={hints.resume}
          refused={refused("resume")}
          isBusy={operation === "resuming"}
          onPress={resume}
          {...caption("Resume")}
        />
      )}
      {!isBrief && (
        <Button
          icon="camera"
          hint={hints.snapshot}
          refused={refused("snapshot")}
          isBusy={operation === "capturing"}
          onPress={() => setConfirming("snapshot")}
        >
          Snapshot
        </Button>
      )}
      <Button
        icon="bin"
        kind={isBrief ? "quiet" : "danger"}
        hint={hints.destroy}
        refused={operation === undefined ? undefined : refused("destroy")}
        isBusy={operation === "destroying"}
        onPress={() => setConfirming("destroy")}
        {...caption("Destroy")}
      />
      {confirming === "pause" && <PauseDialog capsule={capsule} onClose={close} />}
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
      onConfirm={() => dashboard.pause(capsule)}
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

function DestroyDialog({ capsule, onClose }: ConfirmationProps) {
  const dashboard = useDashboard();
  const destroy = async () => {
    await dashboard.destroy(capsule);
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
