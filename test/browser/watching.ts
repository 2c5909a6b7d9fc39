/** Processes and the audit log, which are watched without a reload. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

test("a process appears and goes without a reload", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "processes");
  const { page } = visitor;
  await visitor.sees("/init");
  const { json } = await capsule.exec({ cmd: "sleep", args: ["1000"], background: true });
  const row = page.getByRole("row").filter({ hasText: json.tag });
  await row.getByText("sleep 1000").waitFor();
  await row.getByText("root").waitFor();
  await service().expect(204, "DELETE", `${capsule.path}/processes/${json.pid}`);
  await row.waitFor({ state: "detached" });
});

test("a background process's kept output is shown, then what it writes, then its exit code", deadline, async () => {
  await using capsule = await service().capsule();
  const script =
    "echo kept line; echo complaint >&2; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo live line; exit 3";
  const { json } = await capsule.exec({ cmd: "sh", args: ["-c", script], background: true });
  await using visitor = await Visitor.at(capsule, "processes");
  const { page } = visitor;
  await visitor.presses(`Output of process ${json.pid}`);
  const output = page.getByRole("region", { name: "Output" });
  await output.getByText("kept line").waitFor();
  assert.equal(await output.locator(".stderr").textContent(), "complaint\n");
  await visitor.sees("It is running");
  await capsule.sh("touch /tmp/go");
  await output.getByText("live line").waitFor();
  await visitor.sees("It ended with exit code 3.");
  await page.getByRole("dialog").getByRole("button", { name: "Close" }).last().click();
  await page.getByRole("row").filter({ hasText: json.tag }).waitFor({ state: "detached" });
});

test("the audit log follows, is filtered, and shows a command without its ticket", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "terminal");
  const { page } = visitor;
  await visitor.sees("Connected.");
  await visitor.walksTo("#/audit");
  const rows = page.getByRole("row");
  await rows.filter({ hasText: "pty by a ticket" }).filter({ hasText: "started" }).first().waitFor();
  assert.equal(await rows.filter({ hasText: `${capsule.path}/pty` }).count(), 0);

  const command = { cmd: "sh", args: ["-c", "exit 7"] };
  await service().expect(200, "POST", `${capsule.path}/exec`, { json: command });
  await rows.filter({ hasText: "sh" }).filter({ hasText: "done" }).getByText("exit code 7").waitFor();
  await service().expect(404, "DELETE", "/v1/snapshots/not-here");
  const refused = rows.filter({ hasText: "not-here" });
  await refused.getByText("refused, 404").waitFor();
  await refused.getByText(/^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$/).waitFor();
  await page.getByLabel("Outcome").selectOption("refused");
  await rows.filter({ hasText: "pty by a ticket" }).first().waitFor({ state: "detached" });
  await refused.waitFor();
  await page.getByLabel("Action").selectOption("template");
  await refused.waitFor();
  await page.getByLabel("Outcome").selectOption("aborted");
  await visitor.sees(/^None of the last \d+ entries matches$/);
  await visitor.presses("Show all entries");
  await rows.filter({ hasText: "pty by a ticket" }).first().waitFor();
});

test("the list of processes that is still read after a pause does not resume the capsule", deadline, async () => {
  await using capsule = await service().capsule({ auto_resume: true });
  await using visitor = await Visitor.come();
  const { page } = visitor;
  // The page lists the capsules once, and is told of no change.
  const reset = { contentType: "text/event-stream", body: 'id: 1\nevent: reset\ndata: {"reason":"new"}\n\n' };
  await page.route("**/v1/events*", async () => {});
  await page.route("**/v1/events*", (route) => route.fulfill(reset), { times: 1 });
  await visitor.signIn(service().key);
  await visitor.walksTo(`#/capsules/${capsule.id}/processes`);
  await visitor.sees("/init");
  await capsule.pause();
  const refused = () =>
    page.waitForResponse((answer) => answer.url().includes(`${capsule.path}/processes`) && answer.status() === 409);
  await refused();
  await refused();
  const { json } = await service().expect(200, "GET", capsule.path);
  assert.equal(json.status, "paused");
});

test("the foot has the version; a service that makes no capsules says why above every page", deadline, async () => {
  const { json: health } = await service().expect(200, "GET", "/healthz");
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  await visitor.sees(`Capsule ${health.version}, healthy`);
  const json = { ...health, creates: false, reasons: ["the disk is nearly full"] };
  await page.route("**/healthz", (route) => route.fulfill({ json }));
  await page.reload();
  await visitor.sees("The service makes no new capsules now: the disk is nearly full.");
  await visitor.sees(`Capsule ${health.version}, makes no capsules now`);
});
