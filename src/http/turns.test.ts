/** Requests of one team, as many as it likes at once: in one turn of the event loop the server parses and handles one of them. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type IncomingMessage, ServerResponse } from "node:http";
import net from "node:net";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { countTurns } from "../../test/count-turns.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import { answersPerTurn, sentBytesPerUnit } from "./access/answer-turns.ts";
import { turnUnits } from "./access/message-turns.ts";

const connections = 50;

/** Sends `texts`, each on a connection of its own, all in one turn of the loop. Resolves with the answers' statuses. */
async function sendAll(t: TestContext, api: Api, texts: readonly string[]): Promise<number[]> {
  await api.app.listen({ port: 0, host: "127.0.0.1" });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as net.AddressInfo;
  let accepted = 0;
  api.app.server.on("connection", () => accepted++);
  const sockets = await Promise.all(
    texts.map(async () => {
      const socket = net.connect(port, "127.0.0.1");
      t.after(() => socket.destroy());
      await once(socket, "connect");
      return socket;
    }),
  );
  await waitFor("the server has accepted all", () => accepted === texts.length); // it accepts one in a turn
  const answers = sockets.map(async (socket) => Number(String((await once(socket, "data"))[0]).split(" ")[1]));
  for (const [index, text] of texts.entries()) sockets[index]!.write(text);
  return within("all requests are answered", Promise.all(answers));
}

function request(method: string, path: string, key: string, json?: object): string {
  const head = `${method} ${path} HTTP/1.1\r\nHost: test\r\nX-API-Key: ${key}\r\n`;
  if (json === undefined) return `${head}\r\n`;
  const body = JSON.stringify(json);
  return `${head}Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
}

for (const [what, of] of Object.entries({
  "without a body": (key: string) => request("GET", "/v1/keys", key),
  "with a JSON body": (key: string) => request("POST", "/v1/keys", key, { name: "made" }),
})) {
  test(`requests ${what} of one team are handled one in a turn, and another team's beside the first`, async (t) => {
    const api = new Api();
    const turn = countTurns(t);
    const handled: { team: string; turn: number }[] = [];
    const { teams } = api.service;
    const [keysOf, issueKey] = [teams.keysOf.bind(teams), teams.issueKey.bind(teams)];
    t.mock.method(teams, "keysOf", (team: string) => {
      handled.push({ team, turn: turn() });
      return keysOf(team);
    });
    t.mock.method(teams, "issueKey", (...given: Parameters<typeof issueKey>) => {
      handled.push({ team: given[0].teamId, turn: turn() });
      return issueKey(...given);
    });
    const cameIn: number[] = [];
    api.app.server.on("request", ({ headers }: IncomingMessage) => {
      if (headers["x-api-key"] === keys.blue) cameIn.push(turn());
    });
    const texts = [...Array<string>(connections).fill(of(keys.red)), of(keys.blue)];
    const statuses = await sendAll(t, api, texts);
    assert.ok(
      statuses.every((status) => status === 200 || status === 201),
      String(statuses),
    );
    const turnsOfRed = handled.filter(({ team }) => team === "team-red").map((each) => each.turn);
    assert.equal(new Set(turnsOfRed).size, connections, String(turnsOfRed));
    const turnsOfBlue = handled.filter(({ team }) => team === "team-blue").map((each) => each.turn);
    assert.equal(turnsOfBlue.length, 1);
    const waited = turnsOfBlue[0]! - cameIn[0]!; // a body can be read in the turn after its headers
    assert.ok(waited <= 2, `the other team's request waited for ${waited} turns`);
  });
}

for (const [what, text, expected] of [
  ["with an unknown key", request("GET", "/v1/keys", `capk_${"0".repeat(48)}`), [401, 429]],
  ["without a key, beyond their rate", request("GET", "/healthz", ""), [200, 429]],
  ["with a malformed URL", request("GET", "/v1/%zz", keys.red), [400]],
  ["of an unknown capsule", request("DELETE", "/v1/capsules/cl-none", keys.red), [404]],
  ["of a path that is not there", request("GET", "/v1/none", keys.red), [404]],
  ["with a wrong method", request("OPTIONS", "/v1/keys", keys.red), [204]],
] as const) {
  test(`requests ${what} are answered one in a turn`, async (t) => {
    const api = new Api({ refused_keys_per_sec: 1, open_requests_per_sec: 1 });
    const turn = countTurns(t);
    const turns: number[] = [];
    api.app.server.prependListener("request", (_request: IncomingMessage, response: ServerResponse) => {
      t.mock.method(response, "writeHead", (...given: [number]) => {
        turns.push(turn());
        return ServerResponse.prototype.writeHead.apply(response, given);
      });
    });
    const statuses = await sendAll(t, api, Array(connections).fill(text));
    assert.deepEqual([...new Set(statuses)].sort(), expected);
    const different = new Set(turns).size; // the first can share its turn with the one that follows when the turn ends
    assert.ok(turns.length === connections && different >= connections - 1, String(turns));
  });
}

test("JSON bodies of one team are parsed one in a turn", async (t) => {
  const api = new Api();
  const turn = countTurns(t);
  const turns: number[] = [];
  const parse = JSON.parse;
  t.mock.method(JSON, "parse", (text: string) => {
    if (text.includes('"marked"')) turns.push(turn());
    return parse(text);
  });
  await sendAll(t, api, Array(connections).fill(request("POST", "/v1/keys", keys.red, { name: "marked" })));
  assert.equal(turns.length, connections);
  assert.equal(new Set(turns).size, connections, String(turns));
});

test("requests that have waited for one status are answered one in a turn of their team", async (t) => {
  const api = new Api();
  const turn = countTurns(t);
  const answered: number[] = [];
  api.app.addHook("onSend", (request, _reply, _payload, done) => {
    if (request.url.includes("?wait=")) answered.push(turn());
    done();
  });
  const { host } = api.service;
  host.isHanging = true;
  const { json } = await api.call("POST", "/v1/capsules");
  const waits = Array.from({ length: 20 }, () => api.call("GET", `/v1/capsules/${json.id}?wait=running`));
  await waitFor("all wait", () => api.waits === 20);
  host.stopHanging();
  assert.deepEqual(new Set((await Promise.all(waits)).map((reply) => reply.json.status)), new Set(["running"]));
  assert.deepEqual([answered.length, new Set(answered).size], [20, 20]);
});

test("requests whose commands end together are answered 8 in a turn of their team, and another team's at once", async (t) => {
  const api = new Api();
  const turn = countTurns(t);
  const answered = { red: [] as number[], blue: [] as number[] };
  api.app.addHook("onSend", (request, _reply, _payload, done) => {
    if (request.url.endsWith("/exec")) answered[request.identity.team as "red" | "blue"].push(turn());
    done();
  });
  const runs = async (key: string, count: number) => {
    const id = await api.capsule("running", key);
    const answers = Array.from({ length: count }, () =>
      api.call("POST", `/v1/capsules/${id}/exec`, { key, json: { cmd: "hang" } }),
    );
    await waitFor("all run", () => api.agent(id).runs.length === count);
    return { answers, runs: api.agent(id).runs };
  };
  const [red, blue] = [await runs(keys.red, 30), await runs(keys.blue, 1)];
  for (const run of [...red.runs, ...blue.runs]) run.exit(0);
  const replies = await Promise.all([...red.answers, ...blue.answers]);
  assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set([200]));
  const counts = [...Map.groupBy(answered.red, (at) => at).values()];
  assert.equal(answered.red.length, 30);
  assert.equal(Math.max(...counts.map((each) => each.length)), answersPerTurn);
  assert.ok(answered.blue[0]! <= answered.red[answersPerTurn]!, `${answered.blue} ${answered.red}`);
});

test("pieces of large answers of one team share its turns", async (t) => {
  const api = new Api();
  const turn = countTurns(t);
  const id = await api.capsule();
  const count = 60;
  const answers = Array.from({ length: count }, () =>
    api.call("POST", `/v1/capsules/${id}/exec`, { json: { cmd: "hang" } }),
  );
  await waitFor("all run", () => api.agent(id).runs.length === count);
  const turns: number[] = [];
  const { stringify } = JSON;
  t.mock.method(JSON, "stringify", (value: unknown, ...rest: never[]) => {
    if (typeof value === "string" && value.length > sentBytesPerUnit) turns.push(turn());
    return stringify(value, ...rest);
  });
  for (const run of api.agent(id).runs) {
    run.print("stdout", "x".repeat(400_000));
    run.exit(0);
  }
  for (const { json } of await Promise.all(answers)) assert.equal(json.stdout.length, 400_000);
  const counts = [...Map.groupBy(turns, (at) => at).values()];
  assert.equal(turns.length, count * Math.floor(400_000 / (24 * 1024)));
  const most = Math.max(...counts.map((each) => each.length));
  assert.ok(most <= turnUnits / 2, `${most} pieces in a turn`);
});
