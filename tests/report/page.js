// What the browser tests ask of a page.
globalThis.look = {
    // the texts of a column, of the rows that are shown
    cells: (key) => [...document.querySelectorAll('#table tbody tr')]
        .filter((row) => !row.hidden)
        .map((row) => row.querySelector(`.c-${key} a`) ?? row.querySelector(`.c-${key}`))
        .map((cell) => cell.textContent),

    // what lies compressed in the page is unpacked
    ready: () => new Promise((done) => {
            const { dataset } = document.documentElement;
            const look = () => (dataset.ready ? done(dataset.ready) : setTimeout(look, 5));
            look();
        }),

    downloaded: async () => {
        let blob, name;
        URL.createObjectURL = (it) => { blob = it; return 'blob:none'; };
        HTMLAnchorElement.prototype.click = function () { name = this.download; };
        document.querySelector('#download').click();
        return [name, blob.type, await blob.text()];
    },

    copied: async () => {
        const copied = [];
        const writeText = async (text) => { copied.push(text); };
        Object.defineProperty(navigator, 'clipboard', {value: {writeText}});
        for (const button of document.querySelectorAll('.elements .copy')) button.click();
        await new Promise((done) => setTimeout(done, 60));
        return [copied, document.querySelectorAll('.elements tbody tr').length];
    },
};
