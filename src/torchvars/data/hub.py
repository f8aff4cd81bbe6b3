"""Data sets of Hugging Face, as timm reads them: `hfds/NAME`."""

from .sources import Source, choose_split


class Hub(Source):
    """Pictures of a data set that is stored in tables; one goes by its class, the split, and its number there.

    Args:
        reader: timm's, of a split.
        name, split: of the data set.
        classes: their names, as the data set orders them.
    """

    def __init__(self, reader, name: str, split: str, classes: list[str]):
        self.reader = reader
        name = f"{name}:{split}"
        key = reader.label_key
        labels = reader.dataset.select_columns(key)[:][key]  # of this column alone: no picture is touched
        for index, label in enumerate(labels):
            if label is None or not 0 <= label < len(classes):
                raise ValueError(
                    f"the label of picture {index} of {name} is {label}: expected from 0 to {len(classes) - 1}. "
                    "A split without labels can neither train nor judge"
                )
        if missing := reader.dataset.data.column(reader.image_key).null_count:
            raise ValueError(f"{missing} of {len(labels)} rows of {name} have no picture: leave them out with datasets")
        identities = [f"{classes[label]}/{split}-{index}" for index, label in enumerate(labels)]
        super().__init__(name, identities, list(classes), labels)

    def read(self, index: int) -> bytes:
        with self.reader[index][0] as file:
            return file.read()


def open_hub(name: str, split: str) -> Hub:
    """A split of a data set, by its name on the hub or its folder (pictures, parquet or arrow files).

    Pictures come from its column "image", classes from its column "label", or else from the only ones of their kind.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ValueError(
            f'hfds/{name} is read by the package {error.name}, which is missing: pip install "torchvars[hub]"'
        ) from error
    from timm.data.readers.reader_hfds import ReaderHfds

    present = datasets.get_dataset_split_names(name)
    chosen = choose_split(set(present), split, name, "one")
    if chosen is None:
        raise ValueError(f"{name} has the splits {', '.join(present)}: expected one for {split!r}; rename one")
    features = datasets.load_dataset(name, split=chosen).features
    image = _column(features, "image", datasets.Image, name)
    label = _column(features, "label", datasets.ClassLabel, name)
    # Not by timm's create_dataset, which turns names into lower case: folders would not be found.
    reader = ReaderHfds(name, split=chosen, input_key=image, target_key=label)
    return Hub(reader, name, chosen, features[label].names)


def _column(features: dict, usual: str, kind: type, where: str) -> str:
    """The column of a kind: that of the usual name, or the only one."""
    fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
    if usual in fitting:
        return usual
    if len(fitting) == 1:
        return fitting[0]
    columns = ", ".join(f"{name} ({getattr(feature, 'dtype', feature)})" for name, feature in features.items())
    raise ValueError(
        f"{where} has {len(fitting)} columns of the kind {kind.__name__}, none named {usual!r}, among {columns}: "
        f"expected one. Make it so with datasets: rename_column, cast_column or class_encode_column"
    )
