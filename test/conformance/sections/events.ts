/** Live events of real capsules and templates, received over a connection that is interrupted. */
import assert from "node:assert/strict";
import { EventStream } from "../../event-stream.ts";
import { section, test } from "../conforms.ts";
import { cannotMakeKeys, clientOf, ofOneHost, client as shared } from "../service.ts";

export const events = section(import.meta, "events", () => {
  const skip = ofOneHost("several changes within half a second may be one event");
  const run = async () => {
    const client = cannotMakeKeys ? shared : await clientOf("listeners"); // a team without other capsules
    const first = await EventStream.open(client);
    assert.equal((await first.next())?.name, "reset");
    const capsule = await client.capsule();
    const { data: starting } = await first.nextOf("capsule");
    assert.deepEqual([starting.id, starting.status], [capsule.id, "starting"]);
    await first[Symbol.asyncDispose]();

    const paused = await capsule.pause();
    await capsule.resume();
    await using second = await EventStream.open(client, first.lastId);
    const heard = [await second.nextOf("capsule"), await second.nextOf("capsule"), await second.nextOf("capsule")];
    assert.deepEqual(
      heard.map(({ data }) => data.status),
      ["running", "paused", "running"],
    );
    assert.deepEqual(heard[1]?.data, paused);
    assert.deepEqual(heard[2]?.data, await capsule.view());

    const name = `heard-${Date.now()}`;
    const { json: template } = await client.expect(201, "POST", "/v1/snapshots", {
      json: { sandbox_id: capsule.id, name },
    });
    assert.deepEqual((await second.nextOf("capsule-removed")).data, { id: capsule.id });
    assert.deepEqual((await second.nextOf("template")).data, template);
    await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
    assert.deepEqual((await second.nextOf("template-removed")).data, { name });
    if (client !== shared) client.close();
  };
  test("every status of a capsule is received once, also across a reconnection", run, { skip });
});
