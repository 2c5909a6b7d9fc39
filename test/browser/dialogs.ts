/** Every dialog, from every place that opens it: nothing is cut off, and no key that is pressed in it is lost. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Locator, Page } from "playwright-core";
import { inspect } from "./axe.ts";
import { deadline, service, Visitor } from "./browser.ts";
import { allPlaces, furnish, openings } from "./places.ts";

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

const lights = [
  { width: 1280, height: 800, colorScheme: "light" },
  { width: 390, height: 844, colorScheme: "dark" },
] as const;

/** Faults of an open dialog: parts beyond the window, the focus elsewhere, and what axe finds. */
async function faults(page: Page, dialog: Locator): Promise<string[]> {
  const wrong: string[] = [];
  for (const { colorScheme, ...size } of lights) {
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const found = await dialog.evaluate((element) => {
      const { left, top, right, bottom } = element.getBoundingClientRect();
      const isInside = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
      const hasFocus = element.contains(document.activeElement);
      return [
        ...(isInside ? [] : [`it reaches from ${left}, ${top} to ${right}, ${bottom}`]),
        ...(hasFocus ? [] : [`the focus is on <${document.activeElement?.tagName}>`]),
      ];
    });
    wrong.push(...[...found, ...(await inspect(page, "dialog"))].map((each) => `${size.width} px: ${each}`));
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  return wrong;
}

test("each dialog is inside the window, keeps the focus, and gives it back on Escape", deadline, async () => {
  await using furnished = await furnish(service(), "to-look-at", "to look at");
  await using visitor = await Visitor.signedIn("#/capsules", { viewport: { width: 1280, height: 800 } });
  const { page } = visitor;
  const dialog = page.getByRole("dialog");
  const wrong: string[] = [];
  for (const { at, tick, via, button, next } of allPlaces(furnished.places)) {
    const said = (text: string) => void wrong.push(`${at}, ${next ?? button}: ${text}`);
    await visitor.walksTo(at);
    if (tick !== undefined) await page.getByRole("checkbox", { name: tick }).check();
    const opener = page.getByRole("button", { name: via ?? button, exact: true });
    await opener.press("Enter");
    if (via !== undefined) await visitor.keys(button);
    await dialog.waitFor();
    if (next !== undefined) {
      await dialog.getByRole("button", { name: next, exact: true }).press("Enter");
      await dialog.filter({ hasText: "Save" }).waitFor();
    }
    (await faults(page, dialog)).forEach(said);
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    if (!(await opener.evaluate((element) => element === document.activeElement)))
      said(`after Escape the focus is on ${(await nameOfFocused(page)).trim().slice(0, 80)}`);
  }
  assert.deepEqual(wrong, []);
});

test("no dialog is cut off, and Enter sends what was typed or destroys nothing", deadline, async () => {
  await using furnished = await furnish(service(), "for-dialogs", "for dialogs");
  await using visitor = await Visitor.signedIn("#/capsules", { viewport: { width: widths[0]!, height: 800 } });
  const { page } = visitor;
  const dialog = page.getByRole("dialog");
  const wrong: string[] = [];
  const refusals = await refuse(page);
  for (const { at, via, button, focus, enter, confirm, isTyped } of openings(furnished.places)) {
    const said = (text: string) => void wrong.push(`${at}, ${button}: ${text}`);
    refusals.isOn = false;
    await visitor.walksTo(at);
    if (via !== undefined) await visitor.keys(via);
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
  const told = await visitor.watchesFor(/^Copied$|the browser does not let this page copy/);
  await page.keyboard.press("Enter");
  await told();
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
