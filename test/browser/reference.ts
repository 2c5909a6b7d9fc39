/** The API reference, as the dashboard and a browser use it. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

test(
  "the dashboard links to the reference, and the reference's lines for a console open a socket",
  deadline,
  async () => {
    await using capsule = await service().capsule();
    await using visitor = await Visitor.signedIn();
    const { page } = visitor;
    assert.equal(await page.getByRole("link", { name: "API reference" }).getAttribute("href"), "/docs");
    const { json } = await service().expect(200, "GET", "/openapi.json");
    const lines = (json.info.description as string).split("\n").filter((line) => line.startsWith("    "));
    const code = lines.join("\n").replace('"KEY"', JSON.stringify(service().key)).replace("/ID/", `/${capsule.id}/`);
    const heard = page.waitForEvent("console", (message) => message.text().includes("Linux"));
    await page.evaluate(`(async () => {${code}})()`);
    assert.match((await heard).text(), /"type":"stdout","data":"Linux /);
  },
);
