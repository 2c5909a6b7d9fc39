/** Every dialog, from every place that opens it: nothing is cut off, and no key that is pressed in it is lost. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Locator, Page } from "playwright-core";
import type { TestCapsule } from "../client.ts";
import { deadline, service, Visitor } from "./browser.ts";

interface Opening {
  /** The page, and the button on it. */
  at: string;
  button: string;
  /** The element that has the focus: its label or text. */
  focus: string;
  /** Enter after "ci" was typed sends this request, or closes the dialog without one. */
  enter: "closes" | `POST ${string}` | `PATCH ${string}`;
  /** In a list of choices Enter sends nothing: this button does. */
  confirm?: string;
  /** The typed text is part of the request. */
  isTyped?: true;
}

interface Places {
  capsule: TestCapsule;
  pid: number;
  template: string;
  key: string;
}

function openings({ capsule: { id }, pid, template, key }: Places): Opening[] {
  const page = `#/capsules/${id}`;
  const destroy = { focus: "Cancel", enter: "closes" } as const;
  const pause = { focus: "Pause", enter: `POST /v1/capsules/${id}/pause` } as const;
  const create = { focus: "Template", enter: "POST /v1/capsules", confirm: "Create" } as const;
  return [
    { at: "#/capsules", button: "New capsule", ...create },
    { at: "#/capsules", button: `Pause ${id}`, ...pause },
    { at: "#/capsules", button: `Destroy ${id}`, ...destroy },
    { at: `${page}/details`, button: "Pause", ...pause },
    { at: `${page}/details`, button: "Snapshot", focus: "Template name", enter: "POST /v1/snapshots", isTyped: true },
    { at: `${page}/details`, button: "Destroy", ...destroy },
    {
      at: `${page}/details`,
      button: "Edit name and labels",
      focus: "Name",
      enter: `PATCH /v1/capsules/${id}`,
      isTyped: true,
    },
    {
      at: `${page}/files`,
      button: "New folder",
      focus: "Name",
      enter: `POST /v1/capsules/${id}/files/mkdir`,
      isTyped: true,
    },
    { at: `${page}/files`, button: "file .bashrc", focus: "Close", enter: "closes" },
    {
      at: `${page}/files`,
      button: "Rename .bashrc",
      focus: "New name",
      enter: `POST /v1/capsules/${id}/files/move`,
      isTyped: true,
    },
    { at: `${page}/files`, button: "Delete .bashrc", ...destroy },
    { at: `${page}/processes`, button: `End process ${pid}`, ...destroy },
    { at: `${page}/processes`, button: `Output of process ${pid}`, focus: "Close", enter: "closes" },
    { at: "#/templates", button: `New capsule from ${template}`, ...create },
    { at: "#/templates", button: `Delete ${template}`, ...destroy },
    { at: "#/keys", button: "New key", focus: "Name", enter: "POST /v1/keys", isTyped: true },
    { at: "#/keys", button: `Revoke ${key}`, ...destroy },
  ];
}

const widths = [1280, 390, 360];
const longError = `this is refused for a reason that takes a whole sentence to tell, and names /${"x".repeat(80)}`;

/** Faults in the look of an open dialog, at each width. */
async function looks(page: Page, dialog: Locator): Promise<string[]> {
  const wrong: string[] = [];
  for (const width of widths) {
    await page.setViewportSize({ width, height: 800 });
    const found = await dialog.evaluate((element) => {
      const inherited = ["textAlign", "whiteSpace", "fontSize", "fontWeight", "lineHeight", "letterSpacing"] as const;
      const [own, body] = [getComputedStyle(element), getComputedStyle(document.body)];
      const cut = [element, ...element.querySelectorAll("*")].filter(
        (each) =>
          each.scrollWidth > each.clientWidth &&
          each.clientWidth > 0 &&
          !each.matches(".unseen, input, pre, section, [role=tooltip]"),
      );
      const { left, right } = element.getBoundingClientRect();
      return [
        ...inherited.filter((name) => own[name] !== body[name]).map((name) => `${name} is ${own[name]}`),
        ...cut.map((each) => `<${each.tagName} ${each.className}> shows ${each.clientWidth} of ${each.scrollWidth} px`),
        ...(left < 0 || right > innerWidth ? [`it reaches from ${left} to ${right}`] : []),
      ];
    });
    wrong.push(...found.map((each) => `${width} px: ${each}`));
  }
  await page.setViewportSize({ width: widths[0]!, height: 800 });
  return wrong;
}

/** While `isOn`, refuses every request of the page but those that read; `asked` lists them. */
async function refuse(page: Page) {
  const refusals = { isOn: false, asked: [] as string[] };
  const body = JSON.stringify({ error: { code: "conflict", message: longError } });
  // Once for all dialogs: a request that is sent while interception is switched on or off may pass it.
  await page.route("**/v1/**", async (route) => {
    const request = route.request();
    if (!refusals.isOn || request.method() === "GET") return route.fallback();
    refusals.asked.push(`${request.method()} ${new URL(request.url()).pathname} ${request.postData() ?? ""}`);
    await route.fulfill({ status: 409, contentType: "application/json", body });
  });
  return refusals;
}

async function nameOfFocused(page: Page): Promise<string> {
  return page.evaluate(() => {
    const at = document.activeElement as HTMLInputElement;
    return at.labels?.[0]?.textContent || at.getAttribute("aria-label") || at.textContent || at.tagName;
  });
}

test("no dialog is cut off, and Enter sends what was typed or destroys nothing", deadline, async () => {
  const template = "for-dialogs";
  const source = await service().capsule();
  await service().expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: source.id, name: template } });
  await using capsule = await service().capsule();
  const { json: sleep } = await capsule.exec({ cmd: "sleep", args: ["1000"], background: true });
  const { json: key } = await service().expect(201, "POST", "/v1/keys", { json: { name: "for dialogs" } });
  const places = { capsule, pid: sleep.pid, template, key: "for dialogs" };
  await using visitor = await Visitor.signedIn("#/capsules", { viewport: { width: widths[0]!, height: 800 } });
  const { page } = visitor;
  const dialog = page.getByRole("dialog");
  const wrong: string[] = [];
  const refusals = await refuse(page);
  for (const { at, button, focus, enter, confirm, isTyped } of openings(places)) {
    const said = (text: string) => void wrong.push(`${at}, ${button}: ${text}`);
    refusals.isOn = false;
    await visitor.walksTo(at);
    await visitor.keys(button);
    await dialog.waitFor();
    const focused = await nameOfFocused(page);
    if (focused !== focus) said(`the focus is on ${focused}, not on ${focus}`);
    (await looks(page, dialog)).forEach(said);
    const asked: string[] = [];
    Object.assign(refusals, { isOn: true, asked });
    await page.keyboard.type("ci");
    await page.keyboard.press("Enter");
    if (enter === "closes") {
      await dialog.waitFor({ state: "detached" });
      if (asked.length > 0) said(`Enter sent ${asked}`);
      continue;
    }
    if (confirm !== undefined) {
      if (asked.length > 0) said(`Enter sent ${asked}`);
      await dialog.getByRole("button", { name: confirm }).press("Enter");
    }
    await dialog
      .getByRole("alert")
      .filter({ hasText: longError.slice(1) })
      .waitFor();
    if (!asked[0]?.startsWith(enter)) said(`Enter sent ${asked}`);
    if (isTyped && !decodeURIComponent(asked[0]!).includes("ci")) said(`what was typed is not in ${asked}`);
    (await looks(page, dialog)).forEach((each) => void said(`with an error, ${each}`));
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
  }
  assert.deepEqual(wrong, []);
  await service().expect(204, "DELETE", `/v1/snapshots/${template}`);
  await service().expect(204, "DELETE", `/v1/keys/${key.id}`);
});

test("a second Enter does not close the dialog that shows a new key once", deadline, async () => {
  await using visitor = await Visitor.signedIn("#/keys");
  const { page } = visitor;
  await visitor.keys("New key");
  await page.keyboard.type("ci");
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "Your new key" });
  await dialog.waitFor();
  assert.equal(await nameOfFocused(page), "Copy the key");
  assert.deepEqual(await looks(page, dialog), []);
  await page.keyboard.press("Enter");
  await page
    .getByText(/^Copied$|the browser does not let this page copy/)
    .first()
    .waitFor({ state: "attached" });
  assert.ok(await dialog.isVisible());
  const key = await dialog.locator("code").first().textContent();
  const { json } = await service().expect(200, "GET", "/v1/session", { key: key! });
  assert.equal(json.key_name, "ci");
  await service().expect(204, "DELETE", `/v1/keys/${json.key_id}`);
});

test("the sign-in takes what is typed into the page that was just opened", deadline, async () => {
  await using visitor = await Visitor.come();
  const { page } = visitor;
  await page.getByRole("button", { name: "Sign in" }).waitFor();
  await page.keyboard.type(service().key);
  await page.keyboard.press("Enter");
  await page.getByRole("navigation", { name: "Main" }).waitFor();
});
