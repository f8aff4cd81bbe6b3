"""Data sets of Hugging Face, read by timm: `hfds/NAME`."""

from .sources import Source, choose_split


class Hub(Source):
    """Pictures of a data set in tables, identified by class, split and row.

    Args:
        reader: timm's reader of a split.
        name, split: names of the data set and of the split.
        classes: names of the classes in the order of the data set.
    """

    def __init__(self, reader, name: str, split: str, classes: list[str]):
        self.reader = reader
        name = f"{name}:{split}"
        key = reader.label_key
        labels = reader.dataset.select_columns(key)[:][key]  # of this column alone: no picture is read
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
    """Opens a split of a data set, by its name on the hub or its folder (pictures, parquet or arrow files).

    Pictures are in the column "image", classes in the column "label", or else in the only columns of their kind.
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
    # Not timm's create_dataset, which converts names to lower case, so that folders are not found.
    reader = ReaderHfds(name, split=chosen, input_key=image, target_key=label)
    return Hub(reader, name, chosen, features[label].names)


def _column(features: dict, usual: str, kind: type, where: str) -> str:
    """The column of a kind: the one with the usual name, or the only one."""
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
