/** Reads the conditions and the cursor of a listing of capsules. */
import { createHash } from "node:crypto";
import type { Conditions } from "../capsules/pages.ts";
import { type CapsuleStatus, capsuleStatuses, type ListCapsulesQuery, labelKeyPattern } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";

const labelKey = new RegExp(labelKeyPattern);
/** Base64url characters of the hash that binds a cursor to its conditions. */
const hashLength = 16;

/** Throws CapsuleError("invalid_request"). */
export function conditionsOf({ status, label, template, name }: ListCapsulesQuery): Conditions {
  return {
    ...(status === undefined ? {} : { statuses: status.split(",").map(statusOf) }),
    ...(label === undefined ? {} : { labels: label.map(labelOf) }),
    ...(template === undefined ? {} : { template }),
    ...(name === undefined ? {} : { name }),
  };
}

/** For the page that follows the place `end` under the same conditions. */
export function cursorOf(end: number, conditions: Conditions): string {
  return `${end.toString(36)}-${hashOf(conditions)}`;
}

/** The place that the cursor stands for. Throws CapsuleError("invalid_request"), also under other conditions. */
export function placeOf(cursor: string, conditions: Conditions): number {
  const [place = "", ...hash] = cursor.split("-");
  const number = /^[1-9a-z][0-9a-z]{0,9}$/.test(place) ? Number.parseInt(place, 36) : Number.NaN;
  if (Number.isSafeInteger(number) && hash.join("-") === hashOf(conditions)) return number;
  throw refusal(
    "cursor",
    "cannot be read, or belongs to other conditions: send X-Next-Cursor of a page with the same ones",
  );
}

/** The order of conditions that must all hold, and their number, mean nothing. */
function hashOf({ statuses, labels, template, name }: Conditions): string {
  const sorted = (list: readonly unknown[] = []) => [...new Set(list.map((each) => JSON.stringify(each)))].sort();
  const same = [sorted(statuses), sorted(labels), template ?? null, name ?? null];
  return createHash("sha256").update(JSON.stringify(same)).digest("base64url").slice(0, hashLength);
}

function statusOf(word: string): CapsuleStatus {
  const status = capsuleStatuses.find((each) => each === word);
  if (status !== undefined) return status;
  throw refusal("status", `must be one or more of ${capsuleStatuses.join(", ")}, separated by commas`);
}

function labelOf(text: string): readonly [string, string] {
  const at = text.indexOf("=");
  if (at === -1) throw refusal("label", "must be KEY=VALUE");
  const key = text.slice(0, at);
  if (!labelKey.test(key)) throw refusal("label", `must have a key that matches ${labelKeyPattern} before its first =`);
  return [key, text.slice(at + 1)];
}

function refusal(field: string, problem: string): CapsuleError {
  return new CapsuleError("invalid_request", `the request's query cannot be used: ${field} ${problem}`, {
    details: { field },
  });
}
