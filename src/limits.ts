/** The settings that are limits of clients, readable at GET /v1/limits: a part of config.ts in a file of its own. */
import { availableParallelism, totalmem } from "node:os";
import { integer, type Row, row } from "./setting.ts";
import type { Limits } from "./wire/limits.ts";

const mib = 1024 * 1024;
export const hostMemoryMb = Math.floor(totalmem() / mib);

export const limitRows = {
  vcpus_max: limit("VCPUS_MAX", Math.max(8, availableParallelism()), 1, 255, "virtual CPUs of a capsule", {
    fallbackSaid: "the host's CPUs, at least 8",
  }),
  memory_min_mb: limit("MEMORY_MIN_MB", 128, 64, 1_048_576, "smallest memory of a capsule, MiB"),
  memory_max_mb: limit("MEMORY_MAX_MB", hostMemoryMb, 64, 16_777_216, "largest memory of a capsule, MiB", {
    fallbackSaid: "the host's memory",
  }),
  timeout_max_sec: limit("TIMEOUT_MAX_SEC", 31_536_000, 0, 2_147_483_647, "longest inactivity time of a capsule"),
  capsules_max: limit("CAPSULES_MAX", 1_000, 1, 1_000_000, "capsules of one team"),
  starts_max: limit("STARTS_MAX", 1_000, 1, 1_000_000, "creates and resumes of a team that wait or are under way"),
  running_vcpus_max: limit("RUNNING_VCPUS_MAX", 1_000, 1, 1_000_000, "vCPUs of a team's running capsules"),
  running_memory_max_mb: limit(
    "RUNNING_MEMORY_MAX_MB",
    hostMemoryMb,
    64,
    2 ** 40,
    "memory of a team's running capsules, MiB",
    { fallbackSaid: "the host's memory" },
  ),
  disk_max_bytes: limit(
    "DISK_MAX_BYTES",
    2 ** 40,
    1,
    2 ** 50,
    "a team's files on disk; beyond it creates are refused and writes throttled",
    { fallbackSaid: "3/4 of the disk" },
  ),
  templates_max: limit("TEMPLATES_MAX", 200, 0, 1_000_000, "snapshot templates of a team"),
  body_max_bytes: limit("BODY_MAX_BYTES", mib, 1_024, 64 * mib, "JSON request body"),
  exec_timeout_default_sec: limit("EXEC_TIMEOUT_DEFAULT_SEC", 30, 0, 2_000_000, "foreground exec without a timeout"),
  exec_timeout_max_sec: limit("EXEC_TIMEOUT_MAX_SEC", 604_800, 1, 2_000_000, "longest foreground exec timeout"),
  exec_output_max_bytes: limit(
    "EXEC_OUTPUT_MAX_BYTES",
    16 * mib,
    0,
    256 * mib,
    "output kept of each foreground stream",
  ),
  file_write_max_bytes: limit("FILE_WRITE_MAX_BYTES", 100 * mib, 0, 2 ** 40, "file content sent to files/write"),
  list_entries_max: limit("LIST_ENTRIES_MAX", 100_000, 1, 1_000_000, "entries of one listing"),
  list_depth_max: limit("LIST_DEPTH_MAX", 1_000, 1, 4_096, "depth of one listing"),
  listing_max_bytes: limit("LISTING_MAX_BYTES", 16 * mib, 1_024, 256 * mib, "one listing, as the guest encodes it"),
  answers_max_bytes: limit(
    "ANSWERS_MAX_BYTES",
    256 * mib,
    16 * mib,
    2 ** 40,
    "listings and command output of all teams that clients have not read yet, as JSON",
  ),
  path_max_bytes: limit("PATH_MAX_BYTES", 4_096, 64, 4_096, "a path inside a capsule"),
  connections_max: limit("CONNECTIONS_MAX", 10_000, 10, 1_000_000, "open connections of all clients together"),
  connections_per_address_max: limit(
    "CONNECTIONS_PER_ADDRESS_MAX",
    1_000,
    1,
    1_000_000,
    "open connections of one address (IPv6: of one /64 network)",
  ),
  sockets_max: limit("SOCKETS_MAX", 1_000, 1, 100_000, "open WebSockets of one team"),
  socket_message_max_bytes: limit(
    "SOCKET_MESSAGE_MAX_BYTES",
    2 * mib,
    1_024,
    16 * mib,
    "one WebSocket message of a client",
  ),
  sockets_per_capsule_max: limit("SOCKETS_PER_CAPSULE_MAX", 250, 1, 100_000, "open WebSockets of one capsule"),
  requests_max: limit("REQUESTS_MAX", 1_000, 1, 1_000_000, "requests of one team under way at once"),
  requests_per_sec: limit("REQUESTS_PER_SEC", 2_000, 1, 10_000_000, "requests with one key, in the long run"),
  refused_keys_per_sec: limit(
    "REFUSED_KEYS_PER_SEC",
    50,
    1,
    1_000_000,
    "requests without a valid key from one address, in the long run",
  ),
  open_requests_per_sec: limit("OPEN_REQUESTS_PER_SEC", 100, 1, 1_000_000, "open pages asked for by one address"),
  wait_max_sec: limit("WAIT_MAX_SEC", 300, 0, 3_600, "longest wait of GET /v1/capsules/{id}?wait=…"),
} satisfies Record<keyof Limits, Row<number>>;

function limit(
  name: string,
  fallback: number,
  least: number,
  most: number,
  meaning: string,
  { fallbackSaid = String(fallback) } = {},
): Row<number> {
  return row(`CAPSULE_${name}`, String(fallback), integer(least, most), meaning, fallbackSaid);
}
