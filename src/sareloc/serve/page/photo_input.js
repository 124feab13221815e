// Input of photos: a file button, the camera, drag and drop anywhere on the page, paste.

/** `take(files)` is called with the files of one action; `nothing()` after a drop without files. */
export function listenForPhotos({ choose, shoot, file, camera, overlay }, take, nothing) {
  const give = (files) => (files.length ? take(files) : nothing());
  for (const [button, input] of [[choose, file], [shoot, camera]]) {
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      if (input.files.length) give([...input.files]);
      input.value = "";  // so that the same photo can be chosen again
    });
  }

  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) give([...event.clipboardData.files]);
  });

  let inside = 0;  // a child is entered before its parent is left: the page is left when the count is 0
  const lift = (by) => {
    inside = Math.max(0, inside + by);
    overlay.hidden = !inside;
  };
  const onPage = (name, react) =>
    window.addEventListener(name, (event) => {
      event.preventDefault();  // else the browser opens the file
      react(event);
    });
  onPage("dragenter", () => lift(1));
  onPage("dragleave", () => lift(-1));
  onPage("dragover", () => {});
  onPage("drop", (event) => {
    lift(-inside);
    give([...event.dataTransfer.files]);
  });
}
