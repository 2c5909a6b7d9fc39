/** Teams make their keys here, as the specification says. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

const keyOf = (text: string | null) => /capk_\w+/.exec(text ?? "")?.[0] ?? "";

test(
  "a key made here works elsewhere, is shown once, and works no more when it is revoked here",
  deadline,
  async () => {
    await using visitor = await Visitor.signedIn("#/keys");
    const { page } = visitor;
    await visitor.presses("New key");
    await page.getByRole("dialog").getByLabel("Name").fill("build server");
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: "Your new key" });
    const key = keyOf(await dialog.locator("code").first().textContent());
    await service().expect(200, "GET", "/v1/capsules", { key });
    await visitor.presses("Done");
    await dialog.waitFor({ state: "detached" });
    assert.ok(!(await page.content()).includes(key));
    const row = page.getByRole("row").filter({ hasText: "build server" });
    await row.getByRole("button", { name: "Revoke build server" }).click();
    await page.getByRole("dialog").getByText("Every request with it is refused from now on").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await row.waitFor({ state: "detached" });
    await service().expect(401, "GET", "/v1/capsules", { key });
  },
);

test("revoking the key of this session says what it means, and signs out", deadline, async () => {
  const { json } = await service().expect(201, "POST", "/v1/keys", { json: { name: "mine" } });
  await using visitor = await Visitor.signedIn("#/keys", {}, json.key);
  await visitor.page.getByRole("button", { name: "Revoke mine" }).click();
  await visitor.sees("you will be signed out");
  await visitor.page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await visitor.page.getByRole("button", { name: "Sign in" }).waitFor();
});

test("sign-ins stand apart from keys, and a browser is signed out from another", deadline, async () => {
  const { json: link } = await service().expect(201, "POST", "/v1/sign-in-links");
  await using other = await Visitor.come(`/#token=${link.token}`);
  await other.page.getByRole("heading", { name: "Capsules" }).waitFor();
  await other.walksTo("#/keys");
  const own = other.page.getByRole("table", { name: "Sign-ins" }).getByRole("row").filter({ hasText: "this session" });
  await own.getByRole("cell", { name: "first", exact: true }).waitFor();
  const name = (await own.getByRole("button").getAttribute("aria-label"))!;
  await using visitor = await Visitor.signedIn("#/keys");
  const { page } = visitor;
  await visitor.presses(name);
  assert.equal(await page.getByRole("table", { name: "API keys" }).getByText("dashboard").count(), 0);
  await page.getByRole("dialog", { name: "Sign out this browser?" }).getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("button", { name, exact: true }).waitFor({ state: "detached" });
  await other.page.getByRole("button", { name: "Sign in" }).waitFor();
});
