/**
 * The specification's endpoints and error table as data: the answers of each endpoint by status and, where one status
 * has several reasons, by reason. suite.test.ts requires a test for each.
 */
const onCapsule = ["401", "404 capsule"] as const;
const inRunning = [...onCapsule, "409 not running"] as const;

export const answers = {
  "POST /v1/capsules": ["201", "401", "502"],
  "GET /v1/capsules": ["200", "401"],
  "GET /v1/capsules/{id}": ["200", ...onCapsule],
  "DELETE /v1/capsules/{id}": ["204", ...onCapsule],
  "POST /v1/capsules/{id}/pause": ["200", ...inRunning],
  "POST /v1/capsules/{id}/resume": ["200", ...onCapsule, "409 not paused"],
  "POST /v1/capsules/{id}/ping": ["204", ...inRunning],
  "POST /v1/capsules/{id}/exec": ["200", "202", ...inRunning],
  "GET /v1/capsules/{id}/exec/stream": ["101", ...inRunning],
  "GET /v1/capsules/{id}/processes": ["200", ...inRunning],
  "DELETE /v1/capsules/{id}/processes/{selector}": ["204", ...inRunning, "404 process"],
  "GET /v1/capsules/{id}/processes/{selector}/stream": ["101", ...inRunning, "404 process"],
  "GET /v1/capsules/{id}/pty": ["101", ...inRunning],
  "POST /v1/capsules/{id}/files/read": ["200", ...inRunning, "404 path"],
  "POST /v1/capsules/{id}/files/stream/read": ["200", ...inRunning, "404 path"],
  "POST /v1/capsules/{id}/files/write": ["204", ...inRunning, "413"],
  "POST /v1/capsules/{id}/files/stream/write": ["204", ...inRunning],
  "POST /v1/capsules/{id}/files/list": ["200", ...inRunning, "404 path"],
  "POST /v1/capsules/{id}/files/mkdir": ["200", ...inRunning, "404 path"],
  "POST /v1/capsules/{id}/files/remove": ["204", ...inRunning, "404 path"],
  "GET /v1/snapshots": ["200", "401"],
  "POST /v1/snapshots": ["201", ...inRunning, "409 name taken"],
  "DELETE /v1/snapshots/{name}": ["204", "401", "404 template"],
} as const satisfies Record<string, readonly string[]>;

export type Endpoint = keyof typeof answers;

/** A row of the specification, such as `POST /v1/capsules 201`. */
export type Row = { [E in Endpoint]: `${E} ${(typeof answers)[E][number]}` }[Endpoint];

export const endpoints = Object.keys(answers) as Endpoint[];

export const rows = endpoints.flatMap((endpoint) => answers[endpoint].map((answer) => `${endpoint} ${answer}` as Row));

/** Endpoints with this answer. */
export function endpointsWith(answer: string): Endpoint[] {
  return endpoints.filter((endpoint) => (answers[endpoint] as readonly string[]).includes(answer));
}

export const webSockets: readonly Endpoint[] = endpointsWith("101");
