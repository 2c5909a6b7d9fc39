/** Metrics: of the shared server in Prometheus' format, and of a capsule. */
import assert from "node:assert/strict";
import type { Client } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { client, ofFirstHost, server } from "../service.ts";

const options = {
  skip:
    server === undefined
      ? "the metrics of the server at CAPSULE_URL are not readable with a team's key"
      : ofFirstHost("each host has metrics of its own"),
};

export const metrics = section(import.meta, "metrics", () => {
  test(
    "a capsule's boot, command, pause and removal show in the figures, its id and team nowhere",
    async () => {
      const before = await figures(client);
      const capsule = await client.capsule();
      await capsule.run("true");
      const running = await figures(client);
      await waitFor("the VM's memory is measured", async () => {
        const now = await figures(client);
        return (now.get("capsule_vms") ?? 0) >= 1 && (now.get("capsule_vm_pss_bytes") ?? 0) > 1 << 20;
      });
      await capsule.pause();
      await capsule.destroy();
      const after = await figures(client);

      const grown = (name: string) => (after.get(name) ?? 0) - (before.get(name) ?? 0);
      const done = (operation: string) =>
        grown(`capsule_vm_operation_duration_seconds_count{operation="${operation}",outcome="done"}`);
      assert.ok(done("boot") >= 1);
      assert.ok(done("pause") >= 1);
      assert.ok(grown("capsule_execs_total") >= 1);
      assert.ok(grown('capsule_status_changes_total{status="removed"}') >= 1);
      const route = 'method="POST",route="/v1/capsules/:id/exec",status="200"';
      assert.ok(grown(`capsule_http_request_duration_seconds_count{${route}}`) >= 1);
      assert.ok((running.get('capsule_capsules{status="running"}') ?? 0) >= 1);
      const text = (await client.call("GET", "/metrics")).bytes.toString();
      assert.ok(!text.includes(capsule.id) && !text.includes('"default"'));
    },
    options,
  );

  test("a busy loop shows in the CPU of its capsule, and the guest tells its memory and disk", async () => {
    const capsule = await client.capsule();
    const newest = async () => (await client.expect(200, "GET", `${capsule.path}/metrics`)).json.at(-1);
    const idle = await waitFor("a quiet point with the disk's use", async () => {
      const point = await newest();
      return point !== undefined && point.cpu_pct < 4 && point.disk_used_mb !== null && point;
    });
    assert.ok(idle.disk_used_mb > 0 && idle.disk_used_mb <= idle.disk_total_mb);
    assert.ok(idle.memory_used_mb > 0 && idle.memory_used_mb <= idle.memory_total_mb);
    assert.equal(idle.vcpus, 1);
    const loop = { cmd: "sh", args: ["-c", "while :; do :; done"], background: true };
    await client.expect(202, "POST", `${capsule.path}/exec`, { json: loop });
    // The share of one process on a busy machine may be small.
    await waitFor("a busy point", async () => (await newest())?.cpu_pct > 2 * idle.cpu_pct + 2);
    await capsule.pause();
    const { json: kept } = await client.expect(200, "GET", `${capsule.path}/metrics?since=1`);
    assert.ok(kept.every(({ at }: { at: number }, index: number) => index === 0 || at > kept[index - 1].at));
    for (const query of ["step=60", "step=x", "since=-1", "since=1.5", "since=now", "from=1"])
      await client.expect(400, "GET", `${capsule.path}/metrics?${query}`);
    await capsule.destroy();
  });
});

async function figures(client: Client): Promise<Map<string, number>> {
  const { bytes } = await client.expect(200, "GET", "/metrics", { key: null });
  const lines = bytes.toString().split("\n");
  return new Map(
    lines
      .filter((line) => line !== "" && !line.startsWith("#"))
      .map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ")))]),
  );
}
