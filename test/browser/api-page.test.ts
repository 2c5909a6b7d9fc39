/** The API reference in a real browser: a key is typed in, a request is tried, and nothing comes from elsewhere. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { chromium } from "playwright-core";
import { Api, keys } from "../api.ts";
import { waitFor } from "../wait-for.ts";

const program = "/usr/bin/chromium";

test("a request can be tried from the page, which asks nobody but this server", { timeout: 400_000 }, async () => {
  const api = new Api();
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  const isRoot = process.getuid?.() === 0;
  const browser = await chromium.launch({ executablePath: program, args: isRoot ? ["--no-sandbox"] : [] });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    const wrong: string[] = [];
    page.on("pageerror", (error) => wrong.push(`threw ${error.message}`));
    page.on("console", (message) => void (message.type() === "error" && wrong.push(`logged ${message.text()}`)));
    page.on("request", (request) => {
      const isOurs = request.url().startsWith(url) || request.url().startsWith("data:");
      if (!isOurs) wrong.push(`asked ${request.url()}`);
    });

    await page.goto(`${url}/docs`);
    for (const chapter of ["Capsules", "Execution", "Files", "Templates", "Keys", "Service"]) {
      await page.getByRole("heading", { name: chapter }).first().waitFor();
    }
    await page.setViewportSize({ width: 390, height: 844 });
    await page.getByRole("heading", { name: "WebSockets" }).waitFor();
    await waitFor("a page as wide as a phone", () =>
      page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth),
    );
    await page.setViewportSize({ width: 1280, height: 720 });
    assert.equal(await page.getByRole("link", { name: "dashboard" }).getAttribute("href"), "/");
    await page.getByRole("button", { name: "Authorize" }).first().click();
    const dialog = page.locator(".modal-ux");
    await dialog.getByRole("textbox").first().fill(keys.red);
    await dialog
      .getByRole("button", { name: /apply|authorize/i })
      .first()
      .click();
    await dialog.getByRole("button", { name: "Close" }).last().click();

    const operation = page.locator("#operations-Keys-getSession");
    await operation.getByRole("button").first().click();
    await operation.getByRole("button", { name: "Execute" }).click();
    await operation.getByText('"key_name": "first"').first().waitFor();
    await page.getByRole("heading", { name: "WebSockets" }).waitFor();
    const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const light = await background();
    await page.emulateMedia({ colorScheme: "dark" });
    await waitFor("a dark page", async () => (await background()) !== light); // the page hears of it by an event
    assert.deepEqual(wrong, []);
  } finally {
    await browser.close();
    await api.app.close();
  }
});
