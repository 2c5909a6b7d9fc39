/** Templates that were deleted or replaced. Their files stay as long as a capsule needs them. */
import type { Clock } from "../capsules/clock.ts";
import type { Promised } from "../capsules/promised.ts";
import type { CapsuleRows } from "../db/capsule-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import type { Log } from "../log.ts";

export interface RetiredTemplatesOptions {
  rows: TemplateRows;
  capsuleRows: CapsuleRows;
  host: Host;
  clock: Pick<Clock, "now">;
  log: Log;
  promised: Pick<Promised, "hasFolder">;
}

export class RetiredTemplates {
  readonly #options: RetiredTemplatesOptions;

  constructor(options: RetiredTemplatesOptions) {
    this.#options = options;
  }

  /**
   * Ends warm capsules of retired templates and removes the files that no capsule needs. The next call tries again where this
   * one failed.
   */
  async collect(): Promise<void> {
    const { rows, capsuleRows, host, clock, log, promised } = this.#options;
    for (const row of rows.retired()) {
      try {
        await host.retireTemplate(row.storage);
        if (capsuleRows.needing(row.storage) > 0 || promised.hasFolder(row.storage)) continue;
        await host.removeTemplate(row.storage);
        rows.remove(row.storage, clock.now());
      } catch (error) {
        log.error({ err: error, storage: row.storage }, "a retired template could not be removed");
      }
    }
  }
}
