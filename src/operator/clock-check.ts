/** The clocks of a cluster's database and bucket, as `capsule doctor` compares them with this machine's. */

/** Times in lists, events and the audit log are those of the host that made them. */
const apartMaxMs = 2_000;

/** Between which times, in epoch milliseconds, a clock was read. */
interface Reading {
  from: number;
  to: number;
}

/** Both clocks were read in the same moment. `whose`: what the other clock is of. */
export function clockOf(
  whose: string,
  theirs: Reading,
  own: Reading,
): { word: "ok" | "warning"; name: "clock"; text: string } {
  const aheadMs = Math.max(0, own.from - theirs.to) - Math.max(0, theirs.from - own.to);
  if (Math.abs(aheadMs) <= apartMaxMs) return { word: "ok", name: "clock", text: `within 2 s of the ${whose}'s` };
  const apart = `${(Math.abs(aheadMs) / 1_000).toFixed(1)} s ${aheadMs > 0 ? "ahead of" : "behind"} the ${whose}'s`;
  return { word: "warning", name: "clock", text: `this machine's clock is ${apart}: let NTP set both` };
}
