/**
 * Waits for the status of a capsule that no host holds, by its row and the changes of its team: a request that shows a capsule brings it to
 * no host. A host that acquires it meanwhile copies each status to the row (docs/adr/0132).
 */
import { isFinal } from "../capsules/lifecycle.ts";
import type { CapsuleView } from "../capsules/view.ts";
import type { ReleasedCapsule } from "../http/released.ts";
import type { SharedChange, SharedEvents } from "../http/services.ts";
import type { CapsuleStatus } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";

export interface RowWaitsOptions {
  changes: SharedEvents;
  rowOf: (teamId: string, id: string) => Promise<ReleasedCapsule | undefined>;
}

export class RowWaits {
  readonly #options: RowWaitsOptions;

  constructor(options: RowWaitsOptions) {
    this.#options = options;
  }

  /** As ReleasedCapsules.wait. */
  async until(
    { id, teamId }: Pick<ReleasedCapsule, "id" | "teamId">,
    status: CapsuleStatus,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<CapsuleView> {
    const { changes, rowOf } = this.#options;
    const late = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
    const over = new Promise<void>((resolve) => late.addEventListener("abort", () => resolve()));
    let changed = Promise.withResolvers<void>();
    let end = () => {};
    const off = changes.onChange((team, _position, change) => {
      if (team === teamId && concerns(change, id)) changed.resolve();
    });
    try {
      ({ end } = await changes.open(teamId, undefined, (opened) => opened));
      for (;;) {
        const isLast = late.aborted;
        changed = Promise.withResolvers();
        const found = await rowOf(teamId, id);
        if (found === undefined) throw new CapsuleError("not_found", `there is no capsule ${id}`);
        const { row, view } = found;
        if (isLast || row.status === status || (isFinal(row.status) && row.intent === null)) return view;
        await Promise.race([changed.promise, over]);
      }
    } finally {
      off();
      end();
    }
  }
}

function concerns(change: SharedChange, id: string): boolean {
  if (change.kind === "capsule") return change.view.id === id;
  return change.kind === "reset" || (change.kind === "capsule-removed" && change.id === id);
}
