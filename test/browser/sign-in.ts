/** The ways in and out. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

test("a one-time link signs in once, and leaves the address bar at once", deadline, async () => {
  const { json } = await service().expect(201, "POST", "/v1/sign-in-links");
  await using first = await Visitor.come(`/#token=${json.token}`);
  await first.page.getByRole("heading", { name: "Capsules" }).waitFor();
  assert.ok(!first.page.url().includes(json.token), first.page.url());
  await using second = await Visitor.come(`/#token=${json.token}`);
  await second.page.getByRole("alert").filter({ hasText: "The link cannot be used" }).waitFor();
  await second.page.getByRole("button", { name: "Sign in" }).waitFor();
});

test("a one-time link signs in when it is pasted into a tab that shows the sign-in page", deadline, async () => {
  const { json } = await service().expect(201, "POST", "/v1/sign-in-links");
  await using visitor = await Visitor.come();
  const { page } = visitor;
  await page.getByRole("button", { name: "Sign in" }).waitFor();
  await page.goto(`${service().url}/#token=${json.token}`);
  await page.getByRole("heading", { name: "Capsules" }).waitFor();
  assert.ok(!page.url().includes(json.token), page.url());
});

test("a wrong key is refused in words for somebody at a form; a right one outlives a reload", deadline, async () => {
  await using visitor = await Visitor.come();
  const { page } = visitor;
  await page.getByLabel("API key").fill("capk_wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").filter({ hasText: "No team has this key" }).waitFor();
  await page.getByLabel("API key").fill("");
  await visitor.signIn(service().key);
  await page.reload();
  await page.getByRole("heading", { name: "Capsules" }).waitFor();
});

test(
  "a second tab is signed in by the first; the key outlives neither the last tab nor a sign-out",
  deadline,
  async () => {
    await using visitor = await Visitor.signedIn();
    const { page } = visitor;
    const context = page.context();
    const tab = await context.newPage();
    await tab.goto(`${service().url}/#/templates`);
    await tab.getByRole("heading", { name: "Templates" }).waitFor();
    assert.deepEqual(await tab.evaluate(() => [document.cookie, JSON.stringify(localStorage)]), ["", "{}"]);
    await tab.getByRole("button", { name: "Sign out" }).click();
    await tab.getByRole("button", { name: "Sign in" }).waitFor();
    await visitor.sees("You signed out in another tab.");
    await tab.reload();
    await tab.getByRole("button", { name: "Sign in" }).waitFor();
    assert.equal(await tab.evaluate(() => JSON.stringify(sessionStorage)), "{}");

    await visitor.signIn(service().key);
    await page.goto("about:blank");
    await tab.reload();
    await tab.getByRole("button", { name: "Sign in" }).waitFor();
  },
);

test("a service that cannot answer now signs nobody out", deadline, async () => {
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const body = JSON.stringify({ error: { code: "quota_exceeded", message: "too many requests" } });
  await page.route("**/v1/session", (route) => route.fulfill({ status: 429, body }));
  await page.reload();
  await visitor.sees("Too many requests. Retrying …");
  // Not while one is being answered, which it would be twice.
  await page.unrouteAll({ behavior: "wait" });
  await page.getByRole("heading", { name: "Capsules" }).waitFor();
});

test("signing out forgets the key", deadline, async () => {
  await using visitor = await Visitor.signedIn();
  await visitor.presses("Sign out");
  await visitor.page.getByRole("button", { name: "Sign in" }).waitFor();
  assert.equal(await visitor.page.evaluate(() => JSON.stringify(sessionStorage)), "{}");
  await visitor.page.reload();
  await visitor.page.getByRole("button", { name: "Sign in" }).waitFor();
});

test("whoever is signed in with a key that is revoked is signed out", deadline, async () => {
  const { json } = await service().expect(201, "POST", "/v1/keys", { json: { name: "soon gone" } });
  await using visitor = await Visitor.signedIn("#/templates", {}, json.key);
  await service().expect(204, "DELETE", `/v1/keys/${json.id}`);
  await visitor.walksTo("#/keys");
  await visitor.page.getByRole("alert").filter({ hasText: "You were signed out" }).waitFor();
});
