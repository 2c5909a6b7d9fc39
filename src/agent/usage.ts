/** The answer to USAGE, decoded. */
import type { GuestUsage } from "./agent.ts";
import { whole } from "./protocol.ts";

export function decodeUsage(payload: Buffer): GuestUsage {
  return whole(payload, (fields) => ({
    memoryTotalBytes: fields.u64(),
    memoryUsedBytes: fields.u64(),
    diskTotalBytes: fields.u64(),
    diskUsedBytes: fields.u64(),
  }));
}
