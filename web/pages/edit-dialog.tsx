/** The dialog that changes a capsule's name and labels, in every status. */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { FormDialog } from "../parts/dialog.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { changeOfPairs, pairsIn, textOfPairs } from "../state/pairs.ts";
import { LabelsField, NameField } from "./capsule-fields.tsx";

export function EditDialog({ capsule, onClose }: { capsule: CapsuleInfo; onClose: () => void }) {
  const { client, store } = useDashboard();
  const [name, setName] = useState(capsule.name ?? "");
  const [labels, setLabels] = useState(textOfPairs(capsule.labels));
  const save = async () => {
    const wanted = name.trim() === "" ? null : name.trim();
    const labelChange = changeOfPairs(capsule.labels, pairsIn(labels, "Labels"));
    const { info } = await client.capsule(capsule.id).update({
      ...(wanted === capsule.name ? {} : { name: wanted }),
      ...(labelChange === undefined ? {} : { labels: labelChange }),
    });
    store.changed(info);
  };
  return (
    <FormDialog title="Name and labels" confirm="Save" onConfirm={save} onClose={onClose}>
      <NameField text={name} onChange={setName} />
      <LabelsField text={labels} onChange={setLabels} />
    </FormDialog>
  );
}
