/** Metrics and log of requests at ports' URLs. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { bytesOf, GuestServer, ok, PortUrls, parsed } from "../../../test/port-urls.ts";
import { waitFor } from "../../../test/wait-for.ts";

class Counted {
  readonly contentType = "text/plain";
  readonly statuses: (number | undefined)[] = [];
  readonly bytes = { in: 0, out: 0 };
  wakes = 0;
  socketClosed(): void {}
  requestEnded(): void {}
  portRequestEnded(status: number | undefined): void {
    this.statuses.push(status);
  }
  portBytesMoved(direction: "in" | "out", bytes: number): void {
    this.bytes[direction] += bytes;
  }
  portWoke(): void {
    this.wakes++;
  }
  async text(): Promise<string> {
    return "";
  }
}

const counted = new Counted();
const api = new Api({}, { metrics: { service: counted, to: "any" } });
const urls = new PortUrls(api);

before(() => urls.listen());
after(() => urls.close());

test("requests, refused ones too, are counted and logged, without path, key and token", async () => {
  const id = await api.capsule();
  GuestServer.answering(api, id, 80, ok);
  const token = urls.token(id, 80);
  const ask = async (target: string, key: string | null, host = `80-${id}.localhost`) =>
    parsed(await urls.exchange(bytesOf(host, target, ["Content-Length: 0"], key))).status;
  const statuses = [
    await ask("/private", keys.red),
    await ask("/private", null),
    await ask(`/private?capsule_token=${token}`, null),
    await ask("/private", keys.red, `81-${id}.localhost`),
    await ask("/private", keys.blue),
    await ask("/private", keys.red, "nothing.localhost"),
  ];
  assert.deepEqual(statuses, [200, 401, 303, 502, 404, 404]);
  await waitFor("all are counted", () => counted.statuses.length === statuses.length);
  assert.deepEqual(counted.statuses, statuses);
  const lines = api.log.filter((line) => line.includes('"port request"'));
  assert.deepEqual(
    lines.map((line) => [JSON.parse(line).status, JSON.parse(line).code]),
    [
      [200, undefined],
      [401, "unauthorized"],
      [303, undefined],
      [502, "port_closed"],
      [404, "not_found"],
      [404, "not_found"],
    ],
  );
  assert.equal(JSON.parse(lines[0] as string).id, id);
  assert.doesNotMatch(api.log.join("\n"), new RegExp(`private|${keys.red}|${keys.blue}|${token}`));
  assert.equal(counted.bytes.out, 2);
  api.service.capsules.update("team-red", id, { autoResume: true });
  await api.become(id, "paused");
  assert.equal(await ask("/", keys.red), 502);
  assert.equal(counted.wakes, 1);
});
