/** Orders of the list of capsules. Equal ones stay as they were: newest first. */
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";

/** Empty values are last. */
const byText = (a: string | null, b: string | null) =>
  a === null || b === null ? Number(a === null) - Number(b === null) : a.localeCompare(b, "en", { numeric: true });

const orders = {
  "Newest first": () => 0,
  "By name": (a, b) => byText(a.name, b.name),
  "By status": (a, b) => byText(a.status, b.status),
  "By template": (a, b) => byText(a.template, b.template),
  "Last active first": (a, b) => Date.parse(b.lastActiveAt ?? b.createdAt) - Date.parse(a.lastActiveAt ?? a.createdAt),
  "Largest memory first": (a, b) => b.memoryMb - a.memoryMb,
} satisfies Record<string, (a: CapsuleInfo, b: CapsuleInfo) => number>;

export type Order = keyof typeof orders;
export const orderNames = Object.keys(orders) as Order[];

export function inOrder(capsules: readonly CapsuleInfo[], order: Order): CapsuleInfo[] {
  return capsules.toSorted(orders[order]);
}
