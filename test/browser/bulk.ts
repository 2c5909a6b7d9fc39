/** Actions on several capsules of the list. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

test("ticked capsules are paused, resumed and destroyed; a row tells why it was not", deadline, async () => {
  await using first = await service().capsule();
  await using second = await service().capsule();
  await using third = await service().capsule();
  await third.pause();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const row = (id: string) => page.getByRole("row").filter({ hasText: id });
  const tick = (id: string) => page.getByRole("checkbox", { name: `Choose ${id}` }).check();
  for (const each of [first, second]) await row(each.id).getByText("running").waitFor();
  await row(third.id).getByText("paused").waitFor();

  await tick(first.id);
  await tick(third.id);
  await visitor.sees("2 chosen");
  await tick(second.id);
  const message = "this one is refused by the test";
  const refusal = { status: 409, body: JSON.stringify({ error: { code: "conflict", message } }) };
  await page.route(`**/v1/capsules/${first.id}/pause`, (route) => route.fulfill(refusal));
  await visitor.presses("Pause 2");
  await row(first.id).getByText("This one is refused by the test").waitFor();
  await row(second.id).getByText("paused").waitFor();
  await visitor.sees("1 of 2 are not paused: the list says why.");
  const told = await visitor.watchesFor(/2 capsules are running again\./);
  await visitor.presses("Resume 2");
  await row(third.id).getByText("running").waitFor();
  await row(second.id).getByText("running").waitFor();
  await told();
  assert.equal(await row(first.id).getByText("This one is refused").count(), 0);

  await visitor.presses("Choose none");
  await page.getByRole("checkbox", { name: "Choose all capsules" }).check();
  await page.getByRole("checkbox", { name: `Choose ${third.id}` }).uncheck();
  const left = page.getByRole("button", { name: /^Destroy \d+$/ });
  await left.click();
  const dialog = page.getByRole("dialog");
  for (const { id } of [first, second]) await dialog.getByRole("listitem").filter({ hasText: id }).waitFor();
  assert.equal(await dialog.getByText(third.id).count(), 0);
  await dialog.getByRole("button", { name: "Destroy" }).click();
  for (const { id } of [first, second]) await row(id).waitFor({ state: "detached" });
  await row(third.id).waitFor();
  await service().expect(404, "GET", first.path);
  await service().expect(200, "GET", third.path);
});

test("a capsule that is filtered out is no longer chosen for an action", deadline, async () => {
  await using first = await service().capsule();
  await using second = await service().capsule();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  for (const { id } of [first, second]) await page.getByRole("checkbox", { name: `Choose ${id}` }).check();
  await visitor.sees("2 chosen");
  await page.getByLabel("Filter capsules").fill(first.id);
  await visitor.sees("1 chosen");
  await page.getByRole("button", { name: "Destroy 1", exact: true }).waitFor();
});

test("an action on many capsules sends eight requests at a time", deadline, async () => {
  await using capsule = await service().capsule();
  const { json: sample } = await service().expect(200, "GET", capsule.path);
  const idOf = (index: number) => `cl-${String(index).padStart(25, "0")}`;
  const many = Array.from({ length: 20 }, (_, index) => ({
    ...sample,
    id: idOf(index),
    name: null,
    status: "running",
  }));
  await using visitor = await Visitor.come();
  const { page } = visitor;
  await page.route(/\/v1\/capsules(\?.*)?$/, (route) => route.fulfill({ json: many }));
  const eight = Promise.withResolvers<void>();
  const open = Promise.withResolvers<void>();
  let running = 0;
  let most = 0;
  let ended = 0;
  await page.route("**/v1/capsules/*/pause", async (route) => {
    most = Math.max(most, ++running);
    if (running === 8) eight.resolve();
    await open.promise;
    running--;
    ended++;
    const id = /cl-\d+/.exec(route.request().url())![0];
    await route.fulfill({
      json: { ...sample, id, name: null, status: "paused", last_updated: "2099-01-01T00:00:00.000Z" },
    });
  });
  await visitor.signIn(service().key);
  await page
    .getByRole("row")
    .filter({ hasText: idOf(0) })
    .waitFor();
  await page.getByRole("checkbox", { name: "Choose all capsules" }).check();
  const told = await visitor.watchesFor(/20 capsules are paused\./);
  await visitor.presses("Pause 20");
  await eight.promise;
  // A ninth would have been sent before this request.
  await page.route("**/later", (route) => route.fulfill({ body: "" }));
  await page.evaluate(() => fetch("/later"));
  open.resolve();
  await told();
  assert.deepEqual([ended, most], [20, 8]);
});
