/** All settings but those of limits, as rows of name, default, parser and meaning. */
import { availableParallelism } from "node:os";
import { resolve } from "node:path";
import { hostMemoryMb } from "./limits.ts";
import { parseGrants, parseRanges } from "./network/grants.ts";
import { defaultPortHost, parsePortDomain } from "./network/port-domain.ts";
import { parseProxies } from "./network/proxies.ts";
import {
  bearerToken,
  cpuModel,
  file,
  folder,
  httpUrl,
  integer,
  oneOf,
  origins,
  peerAddress,
  range,
  row,
  word,
} from "./setting.ts";

const mib = 1024 * 1024;
const repository = resolve(import.meta.dirname, "..");
/** Less than the host's memory in a container or a service with a memory limit. */
export const ownMemoryMb = Math.min(hostMemoryMb, Math.floor((process.constrainedMemory() || Infinity) / mib));
/** A capsule's memory is mapped copy-on-write from its template's: an idle one has written about a 17th of it. */
const overcommit = 16;
const poolMemoryMb = Math.ceil(ownMemoryMb / 16);
/** Fits into half of the pool's memory at 36 MiB each, the measured size of a warm capsule without KVM. */
const poolMin = Math.min(24, Math.max(1, Math.floor(poolMemoryMb / 2 / 36)));

export const settings = {
  host: row("CAPSULE_HOST", "127.0.0.1", word, "address to listen on"),
  port: row("CAPSULE_PORT", "8080", integer(0, 65_535), "TCP port to listen on; 0: any free one"),
  tlsCert: row("CAPSULE_TLS_CERT", "", file, "PEM file of the certificate to serve HTTPS with", "none"),
  tlsKey: row("CAPSULE_TLS_KEY", "", file, "PEM file of its private key; SIGHUP reads both again", "none"),
  plainHttp: row(
    "CAPSULE_PLAIN_HTTP",
    "loopback",
    oneOf("loopback", "anywhere"),
    "where to listen without TLS; anywhere: keys may cross the network in the clear",
  ),
  trustProxy: row(
    "CAPSULE_TRUST_PROXY",
    "no",
    parseProxies,
    "proxies whose X-Forwarded-For is believed, by comma: loopback, addresses, networks",
  ),
  corsOrigins: row(
    "CAPSULE_CORS_ORIGINS",
    "",
    origins,
    "origins whose pages may use the API, by comma, such as https://app.example.org",
    "none",
  ),
  portDomain: row(
    "CAPSULE_PORT_DOMAIN",
    defaultPortHost,
    parsePortDomain,
    "domain of the URLs of ports; as a URL it has their scheme and port, too",
  ),
  portTlsCert: row(
    "CAPSULE_PORT_TLS_CERT",
    "",
    file,
    "PEM file of the certificate for that domain's names",
    "CAPSULE_TLS_CERT",
  ),
  portTlsKey: row("CAPSULE_PORT_TLS_KEY", "", file, "PEM file of its private key", "CAPSULE_TLS_KEY"),
  egress: row(
    "CAPSULE_EGRESS",
    "public",
    oneOf("public", "none"),
    "what a capsule reaches that asks for no network: every public address, or nothing",
  ),
  egressCeiling: row(
    "CAPSULE_EGRESS_CEILING",
    "public",
    oneOf("none", "allowlist", "public"),
    "the most that any capsule reaches, whatever it asks for",
  ),
  egressDeny: row(
    "CAPSULE_EGRESS_DENY",
    "",
    parseRanges,
    "more IPv4 ranges that are reserved, by comma, such as your NAT's public address",
    "none",
  ),
  egressGrant: row(
    "CAPSULE_EGRESS_GRANT",
    "",
    parseGrants,
    "reserved destinations that capsules may allow: 10.1.0.0/16:5432,host:11434",
    "none",
  ),
  dataDir: row("CAPSULE_DATA", resolve(repository, ".capsule"), folder, "data folder", "./.capsule"),
  qemu: row("CAPSULE_QEMU", "qemu-system-x86_64", word, "QEMU's program, looked up in PATH unless absolute"),
  concurrentStarts: row(
    "CAPSULE_CONCURRENT_STARTS",
    String(availableParallelism()),
    integer(1, 1_000),
    "VMs that are started at the same time; more are queued",
    "the CPUs of the host",
  ),
  spareBases: row("CAPSULE_SPARE_BASES", "8", integer(1, 1_000), "unused bases (booted shapes) that are kept"),
  pool: row(
    "CAPSULE_POOL",
    "auto",
    oneOf("auto", "off"),
    "auto: capsules warmed ahead of time, as many as recent demand suggests; off: none",
  ),
  poolMemoryMb: row(
    "CAPSULE_POOL_MEMORY_MB",
    String(poolMemoryMb),
    integer(0, 1_048_576),
    "most memory of all warm capsules, MiB",
    "a sixteenth of the memory",
  ),
  poolMin: row(
    "CAPSULE_POOL_MIN",
    String(poolMin),
    integer(0, 1_000),
    "least warm capsules of the default template and shape, within half of that memory",
    "1 to 24, by the memory",
  ),
  warmProcesses: row("CAPSULE_WARM_PROCESSES", "4", integer(0, 1_000), "VM processes started ahead of time; 0: none"),
  warmProcessesMemoryMb: row(
    "CAPSULE_WARM_PROCESSES_MEMORY_MB",
    "192",
    integer(0, 1_048_576),
    "most memory of all VM processes started ahead of time, MiB",
  ),
  crashAt: row(
    "CAPSULE_CRASH_AT",
    "none",
    word,
    "for fault tests: die as by kill -9 at this named step; STEP/stop: as by kill -STOP",
  ),
  accelerator: row(
    "CAPSULE_ACCELERATOR",
    "auto",
    oneOf("auto", "tcg", "kvm"),
    "auto: kvm if a probe VM boots with it, else tcg; kvm: or refuse to start; tcg: emulation",
  ),
  cpu: row("CAPSULE_CPU", "host", cpuModel, "QEMU's CPU model under KVM; a named one is the same on every machine"),
  jail: row(
    "CAPSULE_JAIL",
    "auto",
    oneOf("auto", "off"),
    "auto: the strictest jail that the service's rights allow, or refuse to start; off: none",
  ),
  jailUids: row(
    "CAPSULE_JAIL_UIDS",
    "1900000000-1900065535",
    range(1, 2_147_483_647, 16),
    "uids that VMs run as when the service is root; reserve them for it",
  ),
  probeDeadlineMs: row(
    "CAPSULE_PROBE_DEADLINE_MS",
    "20000",
    integer(1_000, 3_600_000),
    "longest boot of the VM that tries hardware virtualization",
  ),
  bootDeadlineMs: row(
    "CAPSULE_BOOT_DEADLINE_MS",
    "120000",
    integer(1_000, 3_600_000),
    "longest boot of a base or a capsule; it is tried twice",
  ),
  wakeDeadlineMs: row(
    "CAPSULE_WAKE_DEADLINE_MS",
    "15000",
    integer(100, 3_600_000),
    "longest wait for the first answer of a restored capsule",
  ),
  silenceMs: row(
    "CAPSULE_SILENCE_MS",
    "180000",
    integer(600, 86_400_000),
    "longest silence of an agent, probes included, before its capsule counts as lost",
  ),
  drainMs: row("CAPSULE_DRAIN_MS", "10000", integer(0, 3_600_000), "time for open requests to end at shutdown"),
  keepAliveSec: row(
    "CAPSULE_KEEP_ALIVE_SEC",
    "3660",
    integer(1, 86_400),
    "longest idle time of a connection that has shown a valid key; of others 65 s",
  ),
  web: row(
    "CAPSULE_WEB",
    "",
    (text) => (text === "" ? undefined : folder(text)),
    "folder of the built dashboard",
    "web in the data folder",
  ),
  memoryReserveMb: row(
    "CAPSULE_MEMORY_RESERVE_MB",
    "512",
    integer(0, 16_777_216),
    "memory of the host that is never given to a new capsule, MiB",
  ),
  memoryOvercommit: row(
    "CAPSULE_MEMORY_OVERCOMMIT",
    String(overcommit),
    integer(1, 1_000),
    "how many times the host's memory running capsules may have been promised together",
  ),
  diskReserveMb: row(
    "CAPSULE_DISK_RESERVE_MB",
    "0",
    integer(0, 1_073_741_824),
    "space on the data folder's disk that only pauses may use, MiB",
    "1/32 of the disk, max. 8192",
  ),
  auditEntriesMax: row(
    "CAPSULE_AUDIT_ENTRIES_MAX",
    "100000",
    integer(1_000, 100_000_000),
    "entries of a team's audit log; beyond them the oldest of the largest kinds are forgotten",
  ),
  auditKeepDays: row(
    "CAPSULE_AUDIT_KEEP_DAYS",
    "90",
    integer(1, 36_500),
    "days that an entry of the audit log is kept",
  ),
  metrics: row(
    "CAPSULE_METRICS",
    "loopback",
    oneOf("loopback", "any", "off"),
    "who may read /metrics without a token; loopback: this machine, any: all, off: none",
  ),
  metricsToken: row(
    "CAPSULE_METRICS_TOKEN",
    "",
    (text) => (text === "" ? undefined : bearerToken(text)),
    "bearer token that every reader of /metrics must send, from wherever",
    "none",
  ),
  tracesEndpoint: row(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "",
    (text) => (text === "" ? undefined : httpUrl(text)),
    "base URL of an OpenTelemetry collector (OTLP over HTTP) that spans are sent to",
    "none",
  ),
  cluster: row("CAPSULE_CLUSTER", "", file, "file of the cluster that this host belongs to", "none"),
  hostName: row(
    "CAPSULE_HOST_NAME",
    "",
    (text) => (text === "" ? undefined : word(text)),
    "name of this host in the cluster, kept from its first join on",
    "the machine's",
  ),
  peerPort: row(
    "CAPSULE_PEER_PORT",
    "8079",
    integer(0, 65_535),
    "TCP port for the other hosts; 0 only where CAPSULE_PEER_URL names a port",
  ),
  peerUrl: row(
    "CAPSULE_PEER_URL",
    "",
    peerAddress,
    "HOST or HOST:PORT by which the other hosts reach that port",
    "that of the database's client",
  ),
  hostLostSec: row(
    "CAPSULE_HOST_LOST_SEC",
    "300",
    integer(0, 604_800),
    "silence after which a host's running capsules are shown in status error (0: never)",
  ),
  cacheMb: row(
    "CAPSULE_CACHE_MB",
    "0",
    integer(0, 1_073_741_824),
    "disk for paused capsules that are in the cluster's bucket too, MiB",
    "1/10 of the disk",
  ),
  releaseAfterSec: row(
    "CAPSULE_RELEASE_AFTER_SEC",
    "5",
    integer(0, 31_536_000),
    "time after a pause, in seconds, before a capsule's files go to the cluster's bucket",
  ),
  keysStaleSec: row(
    "CAPSULE_KEYS_STALE_SEC",
    "900",
    integer(1, 86_400),
    "how long the keys last read are accepted while the cluster's database is away",
  ),
  logLevel: row(
    "CAPSULE_LOG_LEVEL",
    process.stdout.isTTY ? "warn" : "info",
    oneOf("trace", "debug", "info", "warn", "error", "fatal", "silent"),
    "least severe line that is logged",
    "info, on a terminal warn",
  ),
};
