/** The settings of a capsule, which a client may change at any time: name, labels and inactivity time. */
import type { CapsuleSettings } from "../db/capsule-rows.ts";
import { labelsMax, labelValueMaxBytes } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Capsule } from "./store.ts";

export type Labels = Record<string, string>;

export interface SettingsChange {
  /** null takes the name away. */
  name?: string | null;
  /** Added to those that the capsule has; null removes one. */
  labels?: Record<string, string | null>;
  timeoutSec?: number;
}

/** The settings of `row` after `change`. Throws CapsuleError("invalid_request"). */
export function settingsAfter(row: Pick<Capsule, keyof CapsuleSettings>, change: SettingsChange): CapsuleSettings {
  return {
    name: change.name === undefined ? row.name : change.name,
    labels: change.labels === undefined ? row.labels : encodeLabels(merged(labelsOf(row), change.labels)),
    timeoutSec: change.timeoutSec ?? row.timeoutSec,
  };
}

export function labelsOf({ labels }: Pick<Capsule, "labels">): Labels {
  return JSON.parse(labels) as Labels;
}

/** As the row has them. Throws CapsuleError("invalid_request") when there are too many, or a value is too long. */
export function encodeLabels(labels: Labels): string {
  const entries = Object.entries(labels);
  if (entries.length > labelsMax)
    throw refusal("labels", `a capsule has at most ${labelsMax} labels, not ${entries.length}`);
  for (const [key, value] of entries) {
    if (Buffer.byteLength(value) > labelValueMaxBytes)
      throw refusal(`labels/${key}`, `the label ${key} has more than ${labelValueMaxBytes} bytes of UTF-8`);
  }
  return JSON.stringify(labels);
}

function merged(labels: Labels, change: Record<string, string | null>): Labels {
  const result = new Map(Object.entries(labels));
  for (const [key, value] of Object.entries(change)) {
    if (value === null) result.delete(key);
    else result.set(key, value);
  }
  return Object.fromEntries(result);
}

function refusal(field: string, message: string): CapsuleError {
  return new CapsuleError("invalid_request", message, { details: { field } });
}
