/** Pause, resume and destroy of the capsules that are ticked in the list. A capsule that is filtered out is not acted on. */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { refusal } from "../../src/wire/requirements.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { forEachAtMost } from "../state/at-most.ts";
import { changes, useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { messageOf } from "../state/toasts.ts";

type BulkAction = "pause" | "resume" | "destroy";

const requestsMax = 8;
const namedMax = 20;

const buttons = {
  pause: { text: "Pause", icon: "pause", kind: "plain" },
  resume: { text: "Resume", icon: "play", kind: "plain" },
  destroy: { text: "Destroy", icon: "bin", kind: "danger" },
} as const;

interface Progress {
  action: BulkAction;
  ended: number;
  of: number;
}

export interface Bulk {
  /** The ticked ones of the shown capsules. */
  chosen: readonly CapsuleInfo[];
  /** Id → why the last action on several failed for it. */
  failures: ReadonlyMap<string, string>;
  progress: Progress | undefined;
  toggle: (id: string) => void;
  chooseAll: (isChosen: boolean) => void;
  run: (action: BulkAction, capsules: readonly CapsuleInfo[]) => Promise<void>;
}

export function useBulk(shown: readonly CapsuleInfo[]): Bulk {
  const dashboard = useDashboard();
  const [ids, setIds] = useState<ReadonlySet<string>>(new Set());
  const [failures, setFailures] = useState<ReadonlyMap<string, string>>(new Map());
  const [progress, setProgress] = useState<Progress>();
  const run = async (action: BulkAction, capsules: readonly CapsuleInfo[]) => {
    const failed = new Map<string, string>();
    const of = capsules.length;
    setFailures(failed);
    setProgress({ action, ended: 0, of });
    await forEachAtMost(requestsMax, capsules, async (capsule) => {
      await dashboard.change(action, capsule).catch((error) => failed.set(capsule.id, messageOf(error)));
      setFailures(new Map(failed));
      setProgress((before) => before && { ...before, ended: before.ended + 1 });
    });
    setProgress(undefined);
    const { done } = changes[action];
    if (failed.size > 0)
      dashboard.toasts.failed(new Error(`${failed.size} of ${of} are not ${done}: the list says why.`));
    else dashboard.toasts.done(of === 1 ? `1 capsule is ${done}.` : `${count(of, "capsule")} are ${done}.`);
  };
  return {
    chosen: shown.filter(({ id }) => ids.has(id)),
    failures,
    progress,
    toggle: (id) =>
      setIds((before) => new Set(before.has(id) ? [...before].filter((each) => each !== id) : [...before, id])),
    chooseAll: (isChosen) => setIds(new Set(isChosen ? shown.map(({ id }) => id) : [])),
    run,
  };
}

export function BulkBar({ bulk }: { bulk: Bulk }) {
  const { store } = useDashboard();
  const [destroying, setDestroying] = useState<readonly CapsuleInfo[]>();
  const { chosen, progress } = bulk;
  const isIdle = ({ id }: CapsuleInfo) => !store.operations.value.has(id);
  const able = (action: BulkAction) =>
    chosen.filter((each) => isIdle(each) && refusal(action, each.id, each.status) === undefined);
  const press = (action: BulkAction) =>
    action === "destroy" ? setDestroying(able(action)) : void bulk.run(action, able(action));
  const isShown = chosen.length > 0 || progress !== undefined;
  return (
    <>
      {isShown && (
        <section class="bulk-bar" aria-label="Actions on the chosen capsules">
          <span role="status">
            {progress === undefined
              ? `${chosen.length} chosen`
              : `${messageOf(changes[progress.action].operation)}: ${progress.ended} of ${progress.of}`}
          </span>
          {(Object.keys(buttons) as BulkAction[]).map((action) => {
            const { text, icon, kind } = buttons[action];
            const { length } = able(action);
            return (
              <Button
                key={action}
                icon={icon}
                kind={kind}
                refused={length === 0 ? "None of the chosen capsules allows it" : undefined}
                isBusy={progress?.action === action}
                onPress={() => press(action)}
              >
                {length === 0 ? text : `${text} ${length}`}
              </Button>
            );
          })}
          <Button kind="quiet" icon="close" label="Choose none" onPress={() => bulk.chooseAll(false)} />
        </section>
      )}
      {destroying && <DestroyDialog capsules={destroying} bulk={bulk} onClose={() => setDestroying(undefined)} />}
    </>
  );
}

interface DestroyProps {
  capsules: readonly CapsuleInfo[];
  bulk: Bulk;
  onClose: () => void;
}

/** Closes at once; the list shows the progress. */
function DestroyDialog({ capsules, bulk, onClose }: DestroyProps) {
  const destroy = async () => void bulk.run("destroy", capsules);
  return (
    <FormDialog
      title={`Destroy ${count(capsules.length, "capsule")}?`}
      confirm="Destroy"
      kind="danger"
      onConfirm={destroy}
      onClose={onClose}
    >
      <p>
        {capsules.length === 1
          ? "Its processes are killed. Its files and its memory are deleted."
          : "Their processes are killed. Their files and their memory are deleted."}{" "}
        This cannot be undone.
      </p>
      <ul>
        {capsules.slice(0, namedMax).map(({ id, name }) => (
          <li key={id} class="mono">
            {name ?? id}
          </li>
        ))}
      </ul>
      {capsules.length > namedMax && <p>And {capsules.length - namedMax} more.</p>}
    </FormDialog>
  );
}
