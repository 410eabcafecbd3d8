"""Tables, targets and pictures, written from the CSV files of the scripts."""
