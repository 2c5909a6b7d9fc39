/** The API reference, as the dashboard and a browser use it. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

test(
  "the dashboard links to the reference, and the reference's lines for a console open a socket",
  deadline,
  async () => {
    await using capsule = await service().capsule();
    const { json: job } = await capsule.exec({ cmd: "sh", args: ["-c", "echo kept; sleep 1000"], background: true });
    await using visitor = await Visitor.signedIn();
    const { page } = visitor;
    assert.equal(await page.getByRole("link", { name: "API reference" }).getAttribute("href"), "/docs");
    const { json } = await service().expect(200, "GET", "/openapi.json");
    const guide: string = json.info.description;
    const lines = guide.split("\n").filter((line) => line.startsWith("    "));
    const firsts = Array.from(guide.matchAll(/\| `(\["\/v1.+?\])` \|/g), ([, first]) => first!);
    const heard = ['"type":"stdout","data":"Linux', '"data":"kept', '"type":"started"', '"type":"ready"'];
    assert.equal(firsts.length, heard.length);
    assert.ok(lines[0]!.endsWith(`= ${firsts[0]};`));
    for (const [index, first] of firsts.entries()) {
      const code = [`const [path, query, first] = ${first};`, ...lines.slice(1)].join("\n");
      const own = code.replace('"KEY"', JSON.stringify(service().key)).replace("/ID/", `/${capsule.id}/`);
      const said = page.waitForEvent("console", (message) => message.text().includes(heard[index]!));
      await page.evaluate(`(async () => {${own.replace("/TAG/", `/${job.tag}/`)}})()`);
      await said;
    }
  },
);
