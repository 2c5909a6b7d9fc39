/** Limits of the service, readable by every client. Units stand last in the names. */
import Type, { type Static, type TInteger } from "typebox";

const mib = 1024 * 1024;

/** The machine, as far as defaults depend on it. */
export interface HostSize {
  cpus: number;
  memoryMb: number;
}

/** A limit that the operator can set, as CAPSULE_ and its name in capitals. */
export interface SettableLimit {
  fallback: (host: HostSize) => number;
  /** The fallback in words where it depends on the machine. */
  fallbackSaid: string | undefined;
  least: number;
  most: number;
  /** For `--help`; as a sentence it is the description in the API's document. */
  meaning: string;
}

function limit(
  fallback: number | SettableLimit["fallback"],
  [least, most]: [least: number, most: number],
  meaning: string,
  fallbackSaid?: string,
): SettableLimit {
  return { fallback: typeof fallback === "number" ? () => fallback : fallback, fallbackSaid, least, most, meaning };
}

export const settableLimits = {
  vcpus_max: limit(
    ({ cpus }) => Math.max(8, cpus),
    [1, 255],
    "virtual CPUs of a capsule",
    "the host's CPUs, at least 8",
  ),
  memory_min_mb: limit(128, [64, 1_048_576], "smallest memory of a capsule, MiB"),
  memory_max_mb: limit(
    ({ memoryMb }) => memoryMb,
    [64, 16_777_216],
    "largest memory of a capsule, MiB",
    "the host's memory",
  ),
  disk_max_mb: limit(65_536, [512, 262_144], "largest disk of a capsule that a create may ask for, MiB"),
  timeout_max_sec: limit(31_536_000, [0, 2_147_483_647], "longest inactivity time of a capsule"),
  lifetime_max_sec: limit(31_536_000, [0, 31_536_000], "longest lifetime of a capsule's run"),
  retention_max_sec: limit(31_536_000, [0, 31_536_000], "longest retention of a capsule that does not run"),
  timeout_default_sec: limit(0, [0, 2_147_483_647], "inactivity time of a capsule whose create names none; 0: none"),
  lifetime_default_sec: limit(0, [0, 31_536_000], "lifetime of a capsule whose create names none; 0: any"),
  retention_default_sec: limit(0, [0, 31_536_000], "retention of a capsule whose create names none; 0: for ever"),
  capsules_max: limit(1_000, [1, 1_000_000], "capsules of a team, whatever their status"),
  starts_max: limit(
    1_000,
    [1, 1_000_000],
    "creates, resumes and starts of a team, waiting or under way; further ones are 429",
  ),
  running_vcpus_max: limit(1_000, [1, 1_000_000], "virtual CPUs of a team's running capsules together"),
  running_memory_max_mb: limit(
    ({ memoryMb }) => memoryMb,
    [64, 2 ** 40],
    "memory of a team's running capsules together, MiB",
    "the host's memory",
  ),
  disk_max_bytes: limit(
    2 ** 40,
    [1, 2 ** 50],
    "a team's files on disk; beyond it creates and captures are refused and writes throttled",
    "3/4 of the disk",
  ),
  templates_max: limit(200, [0, 1_000_000], "snapshot templates of a team"),
  body_max_bytes: limit(mib, [1_024, 64 * mib], "JSON request body"),
  exec_timeout_default_sec: limit(30, [0, 2_000_000], "foreground exec without a timeout of its own"),
  exec_timeout_max_sec: limit(
    604_800,
    [1, 2_000_000],
    "longest timeout of a foreground exec; a request's 0 means none",
  ),
  exec_output_max_bytes: limit(16 * mib, [0, 256 * mib], "output kept of each stream of a foreground exec"),
  file_write_max_bytes: limit(100 * mib, [0, 2 ** 40], "content of a file sent to files/write"),
  list_entries_max: limit(100_000, [1, 1_000_000], "entries of one listing"),
  list_depth_max: limit(1_000, [1, 4_096], "depth of one listing"),
  listing_max_bytes: limit(16 * mib, [1_024, 256 * mib], "one listing of files, as the guest encodes it"),
  answers_max_bytes: limit(
    256 * mib,
    [16 * mib, 2 ** 40],
    "unread listings and command output of all teams together, as JSON; beyond it 503",
  ),
  path_max_bytes: limit(4_096, [64, 4_096], "a path inside a capsule"),
  connections_max: limit(10_000, [10, 1_000_000], "open connections of all clients together"),
  connections_per_address_max: limit(
    1_000,
    [1, 1_000_000],
    "open connections of one IPv4 address or IPv6 /64 network; further ones are closed",
  ),
  connections_per_sec: limit(
    50,
    [1, 1_000_000],
    "new connections of one address without a valid key; at once as many as may be open",
  ),
  sockets_max: limit(1_000, [1, 100_000], "open WebSockets of a team"),
  socket_message_max_bytes: limit(2 * mib, [1_024, 16 * mib], "one WebSocket message of a client"),
  sockets_per_capsule_max: limit(250, [1, 100_000], "open WebSockets of a capsule"),
  watches_max: limit(32, [0, 100], "open watches of a capsule; further ones are 429"),
  watch_directories_max: limit(8_192, [1, 1_000_000], "directories of one watch; more are 400, or later an overflow"),
  port_connections_max: limit(250, [1, 500], "open connections to ports of a capsule; further ones are 429"),
  port_team_connections_max: limit(1_000, [1, 100_000], "open connections to ports of a team; further ones are 429"),
  network_connections_max: limit(1_024, [1, 1_024], "connections that a capsule has opened at once; further ones fail"),
  network_team_connections_max: limit(
    8_192,
    [1, 50_000],
    "connections that a team's capsules have opened at once; further ones fail",
  ),
  network_connections_per_sec: limit(
    200,
    [1, 100_000],
    "new connections of a capsule in the long run; further ones fail",
  ),
  network_connections_burst: limit(1_000, [1, 100_000], "new connections of a capsule at once"),
  network_names_per_sec: limit(
    100,
    [1, 100_000],
    "names that a capsule looks up, in the long run; further ones are SERVFAIL",
  ),
  network_names_in_flight_max: limit(
    64,
    [1, 1_024],
    "names that a capsule looks up at once; further ones are SERVFAIL",
  ),
  network_held_max_bytes: limit(
    16 * mib,
    [mib, 16 * mib],
    "data of a capsule's connections on their way; beyond it they are read no further",
  ),
  network_entries_max: limit(256, [0, 1_024], "entries of a network's allow, and of its deny"),
  public_ports_max: limit(32, [0, 1_024], "public ports of a capsule"),
  inject_rules_max: limit(16, [0, 64], "rules of a network's inject"),
  inject_headers_max: limit(16, [0, 64], "headers of one rule of inject"),
  inject_value_max_bytes: limit(8_192, [1, 16_384], "value of one header of inject"),
  port_token_max_sec: limit(604_800, [1, 31_536_000], "longest life of a token that opens a port"),
  public_wakes_per_hour: limit(
    30,
    [0, 1_000_000],
    "resumes of a capsule in an hour by requests to its public ports; further ones are 429",
  ),
  requests_max: limit(1_000, [1, 1_000_000], "requests of a team under way at once, without WebSockets"),
  requests_per_sec: limit(2_000, [1, 10_000_000], "requests with one key, in the long run; at once 5 seconds' worth"),
  refused_keys_per_sec: limit(
    50,
    [1, 1_000_000],
    "requests without a valid key or sign-in link, of one address; at once 20 seconds' worth",
  ),
  open_requests_per_sec: limit(
    100,
    [1, 1_000_000],
    "requests of one address to endpoints without a key; at once 10 seconds' worth",
  ),
  wait_max_sec: limit(300, [0, 3_600], "longest wait of GET /v1/capsules/{id}?wait=…"),
} satisfies Record<string, SettableLimit>;

/** Limits without a setting, with their descriptions. Some are fixed parts of one that has a setting. */
const fixedLimits = {
  keys_max: "live API keys of one team",
  key_name_max_length: "characters of a key's name",
  credentials_per_min: "API keys and sign-in links that one team makes in a minute, in the long run",
  credentials_burst_max: "API keys and sign-in links that one team makes at once",
  tickets_max: "unused WebSocket tickets of one team",
  ticket_life_sec: "life of an unused ticket",
  sign_in_links_max: "unused sign-in links of one team",
  sign_in_link_life_sec: "life of an unused sign-in link",
  session_life_sec: "life of a key made by a sign-in",
  team_requests_per_sec: "sustained rate of requests with all keys of a team",
  requests_burst_sec: "seconds' worth of requests that may come at once, with one key or of one team",
  headers_max_bytes: "URL and headers of a request",
  headers_max_sec: "longest arrival of a request's headers",
  keep_alive_sec: "life of a connection without a request, after an answer, once it has shown a valid key",
  keyless_keep_alive_sec: "life of another connection without a request, after an answer",
  pipelined_requests_max: "requests that wait on one connection behind the one that is handled; with more it is reset",
  keyless_connections_per_24_max: "open connections of one IPv4 /24 or IPv6 /56 network that have shown no valid key",
  keyless_connections_per_16_max: "open connections of one IPv4 /16 or IPv6 /48 network that have shown no valid key",
  body_max_sec: "longest arrival of a JSON body",
  team_received_max_bytes:
    "JSON bodies and WebSocket messages of one team, or of all clients without a key, that are incomplete or wait for their turn",
  json_values_max: "values of a JSON body, or of a WebSocket's message, names of fields included",
  open_body_max_bytes: "JSON body of a request to an endpoint without a key",
  form_max_bytes: "fields and headers of an upload's form, without the file",
  url_max_sec: "life of a signed URL of a file",
  upload_stall_max_sec: "longest pause of an upload",
  read_stall_max_sec: "time in which a client that has an answer to read reads 64 KiB of it, or the rest",
  guest_reply_max_sec:
    "longest wait for a guest that signals, lists processes, makes a directory, or starts in the background",
  team_answers_max_bytes: "one team's part of answers_max_bytes",
  team_answers_reserved_bytes: "answers of one team that do not count against answers_max_bytes",
  listings_max: "listings of files of one team at once; further ones wait",
  archive_paths_max: "paths in one request of files/archive",
  gzip_streams_max: "archives of one team that are compressed or decompressed at once; further ones wait",
  process_lists_max: "listings of processes of one team at once; further ones wait",
  processes_listed_max: "processes of one listing",
  process_list_max_bytes: "command lines of one listing of processes; of further processes only the name is told",
  port_lists_max: "listings of ports of one team at once; further ones wait",
  ports_listed_max: "ports of one listing; further ones are not told",
  port_answer_head_max_bytes: "headers of an answer at a port's URL; more are 502",
  port_answer_head_max_sec: "time for them, after the last byte of the request; longer is 504",
  port_early_max_bytes: "bytes behind a request that asks a port for an upgrade, before its answer; more are 400",
  resume_waiters_max: "requests that wait for the resume of one capsule with auto_resume; further ones are 429",
  resume_wait_max_sec: "longest wait of such a request; then it is 504",
  labels_max: "labels of a capsule",
  label_value_max_bytes: "UTF-8 of a label's value",
  envs_max_bytes: "names and values of a capsule's envs together, UTF-8",
  list_page_max: "capsules of one page of a listing",
  idempotency_keep_sec: "how long the first answer to a request with an Idempotency-Key is kept",
  idempotency_keys_max:
    "answers of one team that are kept for their Idempotency-Keys, fewer beyond 32 MiB together; the oldest go first",
  template_name_max_length: "characters of a template's name in a request",
  event_streams_max: "event streams of one team",
  events_kept_max: "events of one team that a client can resume after; fewer, where they are longer than 1 KiB",
  events_kept_sec: "how long they are kept without an event stream",
  event_stream_unread_max_bytes: "unread events of one stream; beyond it the stream ends",
  socket_first_message_max_sec: "longest wait for the first message of a WebSocket",
  socket_unread_max_bytes: "unread messages of one WebSocket; beyond it the socket is closed",
  capsule_processes_max: "commands of one capsule that run at once, and as many terminals",
  capsule_file_operations_max: "file operations, watches and listings of one capsule at once",
  output_kept_max_bytes: "output of each background process that is kept; of all, at most an eighth of the memory",
  exits_kept_max: "ended background processes of one capsule whose exit and output are kept, and as many terminals",
  exits_kept_sec: "how long an exit code and output are kept after the end",
  terminal_replay_max_bytes: "output of a terminal without a client that is kept for the next one",
  terminal_input_max_bytes: "input that a terminal's program has not read",
  output_lag_max_bytes: "output that waits in the guest for a client of attach or of a terminal",
};

export type Limits = Record<keyof typeof settableLimits, number>;
export type FixedLimits = Record<keyof typeof fixedLimits, number>;

export const Limits = Type.Object(
  integers(settableLimits, ({ meaning }) => meaning),
  { title: "Limits" },
);
export const FixedLimits = Type.Object(
  integers(fixedLimits, (meaning) => meaning),
  { title: "FixedLimits" },
);

/** A whole number for each row, described by its meaning. */
function integers<Name extends string, Row>(rows: Record<Name, Row>, meaningOf: (row: Row) => string) {
  const entries = Object.entries<Row>(rows).map(([name, row]) => {
    const meaning = meaningOf(row);
    const description = meaning.charAt(0).toUpperCase() + meaning.slice(1) + (meaning.endsWith("…") ? "" : ".");
    return [name, Type.Integer({ description })];
  });
  return Object.fromEntries(entries) as Record<Name, TInteger>;
}

/** The usage of the client's team. */
export const Usage = Type.Object(
  {
    capsules: Type.Integer(),
    running_vcpus: Type.Integer(),
    running_memory_mb: Type.Integer(),
    disk_bytes: Type.Integer({ description: "Measured at most a minute ago." }),
    templates: Type.Integer(),
    sockets: Type.Integer(),
    requests: Type.Integer({ description: "Concurrent requests, this one included." }),
  },
  { title: "Usage" },
);
export type Usage = Static<typeof Usage>;

export const LimitsAndUsage = Type.Object(
  { ...Limits.properties, ...FixedLimits.properties, usage: Usage },
  { title: "Limits" },
);
