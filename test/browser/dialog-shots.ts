/** The dialogs of the dashboard as pictures show them. */
import type { Page } from "playwright-core";
import { allPlaces, type Place, type Places } from "./places.ts";
import { press, type Scene, type Shot } from "./shots.ts";

const nameOf = ({ at, button, next, tick }: Place, { capsule }: Places) =>
  `dialog-${at.slice(2)}-${next ?? button}${tick ? "-chosen" : ""}`
    .replaceAll(capsule.id, "it")
    .replace(/[^A-Za-z0-9]+/g, "-")
    .replace(/-\d\d+$/, "");

export function dialogsOf(scene: Scene): Shot[] {
  const opened = allPlaces(scene).map((place): Shot => {
    const { at, tick, via, button, next } = place;
    const act = async (page: Page) => {
      if (tick !== undefined) await page.getByRole("checkbox", { name: tick }).check();
      if (via !== undefined) await press(page, via);
      await press(page, button);
      const dialog = page.getByRole("dialog");
      await dialog.waitFor();
      await page.getByRole("status", { name: "Loading" }).waitFor({ state: "detached" });
      if (next === undefined) return;
      await dialog.getByRole("button", { name: next, exact: true }).press("Enter");
      await dialog.filter({ hasText: "Save" }).waitFor();
    };
    return { name: nameOf(place, scene), at, sign: "", act, isWindow: true };
  });
  const key: Shot = {
    name: "dialog-keys-new-key-shown",
    at: "#/keys",
    sign: "this session",
    act: async (page) => {
      const json = { id: "key-1", name: "ci", key: `capk_${"a1B2".repeat(11)}`, created_at: new Date().toISOString() };
      await page.route("**/v1/keys", (route) =>
        route.request().method() === "POST" ? route.fulfill({ status: 201, json }) : route.continue(),
      );
      await press(page, "New key");
      await page.keyboard.type("ci");
      await page.keyboard.press("Enter");
      await page.getByRole("dialog", { name: "Your new key" }).waitFor();
    },
    isWindow: true,
  };
  const refused: Shot = {
    name: "dialog-create-refused",
    at: "#/capsules",
    sign: "paused",
    act: async (page) => {
      const message = "the team has 4 capsules that run, and may have 4; pause one, or ask the operator for more";
      const json = { error: { code: "quota_exceeded", message } };
      await page.route("**/v1/capsules", (route) =>
        route.request().method() === "POST" ? route.fulfill({ status: 429, json }) : route.continue(),
      );
      await press(page, "New capsule");
      await page.getByRole("dialog").getByRole("button", { name: "Create" }).press("Enter");
      await page.getByRole("dialog").getByRole("alert").waitFor();
    },
    isWindow: true,
  };
  return [...opened, key, refused];
}
