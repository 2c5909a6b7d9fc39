/** The settings of the limits, from their rows in wire/limits.ts. */
import { availableParallelism, totalmem } from "node:os";
import { integer, type Row, row } from "./setting.ts";
import { type HostSize, type Limits, type SettableLimit, settableLimits } from "./wire/limits.ts";

export const hostMemoryMb = Math.floor(totalmem() / 2 ** 20);

const host: HostSize = { cpus: availableParallelism(), memoryMb: hostMemoryMb };

export const limitRows = Object.fromEntries(
  Object.entries<SettableLimit>(settableLimits).map(([name, { fallback, fallbackSaid, least, most, meaning }]) => {
    const text = String(fallback(host));
    return [name, row(`CAPSULE_${name.toUpperCase()}`, text, integer(least, most), meaning, fallbackSaid ?? text)];
  }),
) as Record<keyof Limits, Row<number>>;
