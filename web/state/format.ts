/** Sizes, times and counts as text. */
const units = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${units[unit]}`;
}

export function memory(mib: number): string {
  return size(mib * 1024 * 1024);
}

export function cpus(count: number): string {
  return `${count} vCPU${count === 1 ? "" : "s"}`;
}

const spans = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
] as const;

/** As in "5 minutes ago", and "5 min. ago" where it `isShort`. */
export function ago(at: number, now: number, isShort = false): string {
  const seconds = (now - at) / 1000;
  const format = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: isShort ? "short" : "long" });
  for (const [unit, length] of spans) {
    if (Math.abs(seconds) >= length) return format.format(-Math.trunc(seconds / length), unit);
  }
  return "just now";
}

/** As in "15 minutes"; in the largest unit that divides it. */
export function duration(seconds: number): string {
  for (const [unit, length] of spans) {
    if (seconds >= length && seconds % length === 0) {
      const count = seconds / length;
      return `${count} ${unit}${count === 1 ? "" : "s"}`;
    }
  }
  return `${seconds} s`;
}

export function count(number: number, singular: string, plural = `${singular}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? singular : plural}`;
}
