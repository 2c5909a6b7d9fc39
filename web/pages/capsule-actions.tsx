/**
 * What can be done to a capsule as a whole. Each action says beforehand what will happen, and one that the capsule's
 * status does not allow says so, by the same table as the server.
 */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { type Action, refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { goTo, route } from "../state/route.ts";
import { said } from "../state/toasts.ts";

const hints = {
  pause: "Writes memory and disk to storage and ends the virtual machine; resume brings everything back",
  resume: "Starts the virtual machine from storage; its processes go on where they were",
  snapshot: "Makes a template of it, with everything in its memory; the capsule itself is gone afterwards",
  destroy: "Ends it and deletes its disk and memory for good",
};

type Asking = "pause" | "snapshot" | "destroy";

export function CapsuleActions({ capsule, isBrief = false }: { capsule: CapsuleInfo; isBrief?: boolean }) {
  const dashboard = useDashboard();
  const [asking, setAsking] = useState<Asking>();
  const { id, status } = capsule;
  const doing = dashboard.fleet.doing.value.get(id);
  const refused = (action: Action) => {
    if (doing !== undefined) return `It is ${doing} just now`;
    const why = refusal(action, id, status);
    return why && said(new Error(why));
  };
  const close = () => setAsking(undefined);
  const resume = () => void dashboard.attempt(() => dashboard.resume(capsule));
  const words = (text: string) => (isBrief ? { label: `${text} ${id}` } : { children: text });
  const isPaused = status === "paused" || doing === "resuming";
  return (
    <>
      {(!isBrief || !isPaused) && (
        <Button
          icon="pause"
          kind={isBrief ? "quiet" : "plain"}
          hint={hints.pause}
          refused={refused("pause")}
          isBusy={doing === "pausing"}
          onPress={() => setAsking("pause")}
          {...words("Pause")}
        />
      )}
      {(!isBrief || isPaused) && (
        <Button
          icon="play"
          kind={isBrief ? "quiet" : "plain"}
          hint={hints.resume}
          refused={refused("resume")}
          isBusy={doing === "resuming"}
          onPress={resume}
          {...words("Resume")}
        />
      )}
      {!isBrief && (
        <Button
          icon="camera"
          hint={hints.snapshot}
          refused={refused("snapshot")}
          isBusy={doing === "capturing"}
          onPress={() => setAsking("snapshot")}
        >
          Snapshot
        </Button>
      )}
      <Button
        icon="bin"
        kind={isBrief ? "quiet" : "danger"}
        hint={hints.destroy}
        refused={doing === undefined ? undefined : refused("destroy")}
        isBusy={doing === "destroying"}
        onPress={() => setAsking("destroy")}
        {...words("Destroy")}
      />
      {asking === "pause" && <PauseDialog capsule={capsule} onClose={close} />}
      {asking === "snapshot" && <SnapshotDialog capsule={capsule} onClose={close} />}
      {asking === "destroy" && <DestroyDialog capsule={capsule} onClose={close} />}
    </>
  );
}

interface AskingProps {
  capsule: CapsuleInfo;
  onClose: () => void;
}

function PauseDialog({ capsule, onClose }: AskingProps) {
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
          Its memory and disk are written to storage, and its virtual machine ends: CPU and memory are free again.
        </li>
        <li>Running commands are cut off from whoever waits for them; background processes and terminals are kept.</li>
        <li>Resume brings everything back as it was.</li>
      </ul>
    </FormDialog>
  );
}

function DestroyDialog({ capsule, onClose }: AskingProps) {
  const dashboard = useDashboard();
  const destroy = async () => {
    await dashboard.destroy(capsule);
    leave(capsule);
  };
  return (
    <FormDialog title="Destroy this capsule?" confirm="Destroy" kind="danger" onConfirm={destroy} onClose={onClose}>
      <Subject capsule={capsule} />
      <ul>
        <li>Everything that runs in it ends at once.</li>
        <li>Its files and its memory are deleted. This cannot be undone.</li>
        <li>Templates made from other capsules are not touched.</li>
      </ul>
    </FormDialog>
  );
}

function SnapshotDialog({ capsule, onClose }: AskingProps) {
  const dashboard = useDashboard();
  const [name, setName] = useState("");
  const [overwrite, setOverwrite] = useState(false);
  const capture = async () => {
    await dashboard.capture(capsule, name.trim(), overwrite);
    leave(capsule);
  };
  const isTaken = dashboard.templates.value?.some((each) => each.type === "snapshot" && each.name === name.trim());
  return (
    <FormDialog title="Make a template of this capsule?" confirm="Make template" onConfirm={capture} onClose={onClose}>
      <Subject capsule={capsule} />
      <ul>
        <li>
          The template holds its disk, its memory and its running processes. New capsules start from this very moment.
        </li>
        <li>The capsule itself is destroyed by it.</li>
      </ul>
      <Field label="Template name" hint="Letters, digits, dots, dashes and underscores. Left empty, a name is made up.">
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

/** The page of a capsule that is gone is no place to stay. */
function leave({ id }: CapsuleInfo): void {
  const here = route.value;
  if (here.page === "capsule" && here.id === id) goTo({ page: "capsules" });
}
