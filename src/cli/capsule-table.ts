/** Capsules as rows for people. */
import type { CapsuleInfo, CapsuleStatus } from "../sdk/sdk.ts";
import { ago, type Cell, type Color, table } from "./screen.ts";

const colors: Record<CapsuleStatus, Color> = {
  pending: "yellow",
  starting: "yellow",
  running: "green",
  paused: "blue",
  stopped: "dim",
  error: "red",
};

export function capsuleTable(infos: readonly Readonly<CapsuleInfo>[]): string {
  const row = (info: Readonly<CapsuleInfo>): (string | Cell)[] => [
    info.id,
    { text: info.status, color: colors[info.status] },
    info.template,
    String(info.vcpus),
    `${info.memoryMb} MiB`,
    ago(info.createdAt),
    ago(info.lastActiveAt),
  ];
  return table(["ID", "STATUS", "TEMPLATE", "VCPUS", "MEMORY", "CREATED", "ACTIVE"], infos.map(row));
}
